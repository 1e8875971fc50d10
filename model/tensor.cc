#include "model/tensor.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/status/statusor.h"
#include "common/types/text.h"
#include "model/weights/weight_format.h"

namespace flotilla::model {
namespace {

using Numbers = WeightEncoding::Numbers;

float Bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Decodes codes by the formula of weight_panel.h, kFactorGroup at a time.
void DecodeCodes(const WeightEncoding& encoding, const WeightRow& row, int begin, int end,
                 float* out) {
  const bool bf16 = encoding.scales == WeightEncoding::Scales::kBf16;
  for (int k = begin; k < end; k += kFactorGroup, out += kFactorGroup) {
    const uint16_t bits = row.scales[k / encoding.scale_group];
    float scale = bf16 ? Bf16ToFloat(bits) : HalfToFloat(bits);
    if (encoding.has_factors) scale *= static_cast<float>(row.factors[k / kFactorGroup]);
    for (int j = 0; j < kFactorGroup; ++j) out[j] = scale * static_cast<float>(row.codes[k + j]);
    if (!encoding.has_minimums) continue;
    float minimum = HalfToFloat(row.minimums[k / kScaleGroup]);
    if (encoding.has_minimum_factors) {
      minimum *= static_cast<float>(row.minimum_factors[k / kFactorGroup]);
    }
    for (int j = 0; j < kFactorGroup; ++j) out[j] += minimum;
  }
}

// Decodes the elements [begin, end) of a window.
void Decode(const WeightEncoding& encoding, const WeightRow& row, int begin, int end, float* out) {
  const std::byte* p = row.numbers;
  switch (encoding.numbers) {
    case Numbers::kFp32:
      std::memcpy(out, p + begin * sizeof(float), (end - begin) * sizeof(float));
      return;
    case Numbers::kFp16:
      for (int k = begin; k < end; ++k) *out++ = HalfToFloat(LoadAs<uint16_t>(p + k * 2));
      return;
    case Numbers::kBf16:
      for (int k = begin; k < end; ++k) {
        *out++ = Bf16ToFloat(LoadAs<uint16_t>(p + k * 2));
      }
      return;
    case Numbers::kCodes:
      return DecodeCodes(encoding, row, begin, end, out);
  }
}

absl::Status CannotBeDecoded(GgmlType type) {
  return Unimplemented("tensor type ", GgmlTypeName(type), " cannot be decoded");
}

// Checks what is read of `count` rows of `k` elements.
absl::Status CheckRange(int64_t count, int64_t k, std::span<const int64_t> rows, int64_t k_begin,
                        int64_t k_end) {
  if (k_begin < 0 || k_begin >= k_end || k_end > k || k_begin % kScaleGroup != 0 ||
      (k_end % kScaleGroup != 0 && k_end != k) ||
      k_begin / kPanelWindow != (k_end - 1) / kPanelWindow) {
    return InvalidArgument("elements ", k_begin, " to ", k_end, " of rows of ", k,
                           " are not a panel");
  }
  if (rows.empty() || rows.size() > kPanelOutputs) {
    return InvalidArgument("a panel of ", rows.size(), " rows");
  }
  for (const int64_t row : rows) {
    if (row < 0 || row >= count) return InvalidArgument("row ", row, " of ", count, " rows");
  }
  return absl::OkStatus();
}

// The format that reads panels of the tensor in `encoding`.
absl::StatusOr<const WeightFormat*> FormatFor(const Tensor& tensor,
                                              const WeightEncoding& encoding) {
  const WeightFormat* format = FindWeightFormat(tensor.type);
  if (format == nullptr) return CannotBeDecoded(tensor.type);
  if (encoding == format->encoding || encoding == WeightEncoding{}) return format;
  return InvalidArgument("panels of ", GgmlTypeName(tensor.type),
                         " have the encoding of their format or fp32");
}

// Begins a panel of the elements [k_begin, k_end), filled up to a multiple of kScaleGroup.
void BeginPanel(const WeightEncoding& encoding, size_t outputs, int64_t k_begin, int64_t k_end,
                WeightPanel& panel) {
  const int64_t window = k_begin / kPanelWindow * kPanelWindow;
  panel.encoding = encoding;
  panel.outputs = static_cast<int>(outputs);
  panel.begin = static_cast<int>(k_begin - window);
  panel.end = static_cast<int>((k_end - window + kScaleGroup - 1) / kScaleGroup * kScaleGroup);
}

// Ends one of its rows, of which `end` elements have been read in the encoding of `format`: turns
// them into the encoding of the panel, and fills up with zeros.
void EndRow(const WeightFormat& format, int end, WeightPanel& panel, WeightRow& row) {
  if (panel.encoding != format.encoding) {
    float weights[kPanelWindow];
    Decode(format.encoding, row, panel.begin, end, weights);
    std::memcpy(row.numbers + panel.begin * sizeof(float), weights,
                (end - panel.begin) * sizeof(float));
  }
  if (end == panel.end) return;
  const size_t bytes = panel.encoding.numbers == Numbers::kFp32 ? 4 : 2;
  std::memset(row.numbers + end * bytes, 0, (panel.end - end) * bytes);
}

}  // namespace

bool IsDecodable(GgmlType type) { return FindWeightFormat(type) != nullptr; }

bool IsPlain(GgmlType type) {
  const WeightFormat* format = FindWeightFormat(type);
  return format != nullptr && format->encoding.numbers != Numbers::kCodes;
}

WeightEncoding EncodingOf(GgmlType type) {
  const WeightFormat* format = FindWeightFormat(type);
  return format == nullptr ? WeightEncoding{} : format->encoding;
}

absl::Status DequantizeRow(GgmlType type, std::span<const std::byte> bytes, std::span<float> out) {
  const WeightFormat* format = FindWeightFormat(type);
  if (format == nullptr) return CannotBeDecoded(type);
  const GgmlTypeInfo& info = *FindGgmlType(static_cast<uint32_t>(type));
  if (out.size() % info.block_elements != 0 || bytes.size() % info.block_bytes != 0 ||
      bytes.size() / info.block_bytes != out.size() / info.block_elements) {
    return InvalidArgument(bytes.size(), " bytes of ", info.name, " do not hold ", out.size(),
                           " elements");
  }
  WeightRow row;
  for (size_t i = 0; i < out.size(); i += kPanelWindow) {
    const int count = static_cast<int>(std::min<size_t>(kPanelWindow, out.size() - i));
    format->read(bytes.data() + i / info.block_elements * info.block_bytes, 0, count, row);
    Decode(format->encoding, row, 0, count, out.data() + i);
  }
  return absl::OkStatus();
}

absl::Status ReadPanel(const Tensor& tensor, std::span<const int64_t> rows, int64_t k_begin,
                       int64_t k_end, const WeightEncoding& encoding, WeightPanel& panel) {
  const auto format = FormatFor(tensor, encoding);
  if (!format.ok()) return format.status();
  const GgmlTypeInfo& info = *FindGgmlType(static_cast<uint32_t>(tensor.type));
  const int64_t elements = info.block_elements;
  const auto k = static_cast<int64_t>(tensor.dims[0]);
  const int64_t row_bytes = k / elements * info.block_bytes;
  // A tensor that has no whole rows, whatever it says, has none.
  const int64_t count =
      k % elements == 0 && row_bytes > 0 ? static_cast<int64_t>(tensor.data.size()) / row_bytes : 0;
  absl::Status status = CheckRange(count, k, rows, k_begin, k_end);
  if (!status.ok()) return status;
  const int64_t window = k_begin / kPanelWindow * kPanelWindow;
  // The blocks that have the elements. A row has whole blocks, so the last one ends in it.
  const int64_t first = k_begin / elements * elements;
  const int64_t last = (k_end + elements - 1) / elements * elements;
  BeginPanel(encoding, rows.size(), k_begin, k_end, panel);
  for (size_t i = 0; i < rows.size(); ++i) {
    WeightRow& row = panel.rows[i];
    (*format)->read(tensor.data.data() + rows[i] * row_bytes + first / elements * info.block_bytes,
                    static_cast<int>(first - window), static_cast<int>(last - window), row);
    EndRow(**format, static_cast<int>(k_end - window), panel, row);
  }
  return absl::OkStatus();
}

absl::Status ReadTransposedPanel(const Tensor& tensor, std::span<const int64_t> rows,
                                 int64_t k_begin, int64_t k_end, const WeightEncoding& encoding,
                                 WeightPanel& panel) {
  const auto format = FormatFor(tensor, encoding);
  if (!format.ok()) return format.status();
  if (!IsPlain(tensor.type)) {
    return InvalidArgument("a matrix of type ", GgmlTypeName(tensor.type), " cannot be transposed");
  }
  const auto count = static_cast<int64_t>(tensor.dims[0]);
  const auto k = static_cast<int64_t>(tensor.dims[1]);
  const int64_t bytes = FindGgmlType(static_cast<uint32_t>(tensor.type))->block_bytes;
  absl::Status status = CheckRange(count, k, rows, k_begin, k_end);
  if (!status.ok()) return status;
  const int64_t window = k_begin / kPanelWindow * kPanelWindow;
  BeginPanel(encoding, rows.size(), k_begin, k_end, panel);
  for (size_t i = 0; i < rows.size(); ++i) {
    WeightRow& row = panel.rows[i];
    for (int64_t at = k_begin; at < k_end; ++at) {
      std::memcpy(row.numbers + (at - window) * bytes,
                  tensor.data.data() + (at * count + rows[i]) * bytes, bytes);
    }
    EndRow(**format, static_cast<int>(k_end - window), panel, row);
  }
  return absl::OkStatus();
}

}  // namespace flotilla::model
