// One tensor of a model file, and how its weights are read.
//
// Pure functions over bytes: any thread, no allocation. DequantizeRow is the definition of what a
// weight means; kernels are tested against it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "common/types/weight_panel.h"
#include "model/composite_tensor.h"
#include "model/ggml_type.h"

namespace flotilla::model {

// A tensor by view: name and data lie in the checkpoint. dims[0] is the contiguous dimension (a
// row), so this is the usual shape [rows, columns] reversed; dims past `rank` are 1. `data` is
// whole blocks of `type`.
//
// Or the weights are those of a composite, whose rows from `first_row` on are those of the tensor.
// `type` is kComposite then, and `data` is empty.
struct Tensor {
  std::string_view name;
  uint32_t rank;
  uint64_t dims[4];
  GgmlType type;
  std::span<const std::byte> data;
  const CompositeTensor* composite = nullptr;  // it lives as long as the checkpoint
  int64_t first_row = 0;

  // Those in the file.
  uint64_t bytes() const;
  uint64_t elements() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
};

// Whether `type` has a format (model/weights/). The functions below answer UNIMPLEMENTED, naming
// the type, for those that have none.
bool IsDecodable(GgmlType type);

bool IsDecodable(const Tensor& tensor);

// Whether elements of the tensor are numbers by themselves, not in blocks.
bool IsPlain(const Tensor& tensor);

// The name of the tensor's type, for people.
std::string_view TypeName(const Tensor& tensor);

// Decodes whole blocks to fp32. `bytes` must hold exactly the blocks of `out.size()` elements.
// INVALID_ARGUMENT if the sizes disagree.
absl::Status DequantizeRow(GgmlType type, std::span<const std::byte> bytes, std::span<float> out);

// Decodes a row of a matrix, whose length is that of `out`. The row must be there. Errors as for
// DequantizeRow.
absl::Status DecodeRow(const Tensor& tensor, int64_t row, std::span<float> out);

// The encoding of the panels of `type`; plain fp32 for a type that has no format.
WeightEncoding EncodingOf(GgmlType type);
WeightEncoding EncodingOf(const Tensor& tensor);

// The same under recipe `fast`: with the activations of a W8A8 checkpoint.
WeightEncoding FastEncodingOf(const Tensor& tensor);

// Reads the elements [k_begin, k_end) of some rows of a matrix as a panel: rows[i] is the row of
// output i. `encoding` is EncodingOf(tensor), FastEncodingOf(tensor) or plain fp32. The last
// elements of a row may be fewer than kScaleGroup, and the panel then ends in zeros.
// INVALID_ARGUMENT if it is another encoding, if there are no rows or more than kPanelOutputs, if
// rows or elements lie outside the tensor, if the elements are not multiples of kScaleGroup in one
// window, or if a scale or a minimum is infinite or no number; the message names the row.
absl::Status ReadPanel(const Tensor& tensor, std::span<const int64_t> rows, int64_t k_begin,
                       int64_t k_end, const WeightEncoding& encoding, WeightPanel& panel);

// Whether ReadPanel can read all rows of a matrix, in which some scale may be no number. The rows
// of plain numbers are not looked at. INVALID_ARGUMENT names the row.
absl::Status CheckRows(const Tensor& tensor);

// The encoding of the panels of the transposed matrix: fp32 where elements are not plain numbers,
// as a block of a file is in many panels then.
WeightEncoding TransposedEncodingOf(const Tensor& tensor);

// The same as ReadPanel of the transposed matrix: rows[i] is the column of output i, and `encoding`
// is TransposedEncodingOf(tensor) or plain fp32.
absl::Status ReadTransposedPanel(const Tensor& tensor, std::span<const int64_t> rows,
                                 int64_t k_begin, int64_t k_end, const WeightEncoding& encoding,
                                 WeightPanel& panel);

}  // namespace flotilla::model
