// CompositeTensor: matrices whose weights a checkpoint keeps in several tensors, e.g. one of codes
// and one of scales. A folder that is quantised has them (model/huggingface/quantization/).
//
// Immutable; any thread may read it. It has checked that what it reads lies inside the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/types/weight_panel.h"

namespace flotilla::model {

class CompositeTensor {
 public:
  virtual ~CompositeTensor() = default;

  // The format for people, e.g. "MXFP4".
  virtual std::string_view format() const = 0;
  virtual const WeightEncoding& encoding() const = 0;
  // The same with the activations that the checkpoint multiplies the weights by, where recipe
  // `fast` follows it.
  virtual WeightEncoding fast_encoding() const { return encoding(); }
  // The rows of all its matrices together.
  virtual int64_t rows() const = 0;
  // The bytes of the file that it is made of.
  virtual std::span<const std::span<const std::byte>> parts() const = 0;
  // The number of weights, of all rows, that have outliers.
  virtual int64_t outliers() const { return 0; }
  // Reads the elements from k_begin to k_end of a row, which are whole groups of kScaleGroup in one
  // window. The row and the elements must be there.
  virtual void Read(int64_t row, int64_t k_begin, int64_t k_end, WeightRow& out) const = 0;
};

}  // namespace flotilla::model
