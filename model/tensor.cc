#include "model/tensor.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/types/text.h"
#include "model/weights/weight_format.h"

namespace flotilla::model {
namespace {

using Numbers = WeightEncoding::Numbers;

// Decodes codes by the formula of weight_panel.h, kFactorGroup at a time.
void DecodeCodes(const WeightEncoding& encoding, const WeightRow& row, int begin, int end,
                 float* out) {
  for (int k = begin; k < end; k += kFactorGroup, out += kFactorGroup) {
    float scale = HalfToFloat(row.scales[k / kScaleGroup]);
    if (encoding.has_factors) scale *= static_cast<float>(row.factors[k / kFactorGroup]);
    for (int j = 0; j < kFactorGroup; ++j) out[j] = scale * static_cast<float>(row.codes[k + j]);
    if (!encoding.has_minimums) continue;
    const float minimum = HalfToFloat(row.minimums[k / kScaleGroup]);
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
        *out++ = std::bit_cast<float>(static_cast<uint32_t>(LoadAs<uint16_t>(p + k * 2)) << 16);
      }
      return;
    case Numbers::kCodes:
      return DecodeCodes(encoding, row, begin, end, out);
  }
}

absl::Status CannotBeDecoded(GgmlType type) {
  return Unimplemented("tensor type ", GgmlTypeName(type), " cannot be decoded");
}

// Also checks that the tensor has whole rows, as it says.
absl::Status CheckRange(const Tensor& tensor, const GgmlTypeInfo& info, int64_t row_bytes,
                        std::span<const int64_t> rows, int64_t k_begin, int64_t k_end) {
  const auto k = static_cast<int64_t>(tensor.dims[0]);
  if (k % info.block_elements != 0 || k_begin < 0 || k_begin >= k_end || k_end > k ||
      k_begin % kScaleGroup != 0 || k_end % kScaleGroup != 0 ||
      k_begin / kPanelWindow != (k_end - 1) / kPanelWindow) {
    return InvalidArgument("elements ", k_begin, " to ", k_end, " of rows of ", k,
                           " are not a panel");
  }
  if (rows.empty() || rows.size() > kPanelOutputs) {
    return InvalidArgument("a panel of ", rows.size(), " rows");
  }
  const int64_t count = static_cast<int64_t>(tensor.data.size()) / row_bytes;
  for (const int64_t row : rows) {
    if (row < 0 || row >= count) return InvalidArgument("row ", row, " of ", count, " rows");
  }
  return absl::OkStatus();
}

}  // namespace

bool IsDecodable(GgmlType type) { return FindWeightFormat(type) != nullptr; }

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
  const WeightFormat* format = FindWeightFormat(tensor.type);
  if (format == nullptr) return CannotBeDecoded(tensor.type);
  const bool decode = encoding != format->encoding;
  if (decode && encoding != WeightEncoding{}) {
    return InvalidArgument("panels of ", GgmlTypeName(tensor.type),
                           " have the encoding of their format or fp32");
  }
  const GgmlTypeInfo& info = *FindGgmlType(static_cast<uint32_t>(tensor.type));
  const int64_t elements = info.block_elements;
  const int64_t row_bytes = static_cast<int64_t>(tensor.dims[0]) / elements * info.block_bytes;
  absl::Status status = CheckRange(tensor, info, row_bytes, rows, k_begin, k_end);
  if (!status.ok()) return status;
  const int64_t window = k_begin / kPanelWindow * kPanelWindow;
  // The blocks that have the elements. A row has whole blocks, so the last one ends in it.
  const int64_t first = k_begin / elements * elements;
  const int64_t last = (k_end + elements - 1) / elements * elements;
  panel.encoding = encoding;
  panel.outputs = static_cast<int>(rows.size());
  panel.begin = static_cast<int>(k_begin - window);
  panel.end = static_cast<int>(k_end - window);
  for (size_t i = 0; i < rows.size(); ++i) {
    WeightRow& row = panel.rows[i];
    format->read(tensor.data.data() + rows[i] * row_bytes + first / elements * info.block_bytes,
                 static_cast<int>(first - window), static_cast<int>(last - window), row);
    if (!decode) continue;
    float weights[kPanelWindow];
    Decode(format->encoding, row, panel.begin, panel.end, weights);
    std::memcpy(row.numbers + panel.begin * sizeof(float), weights,
                (panel.end - panel.begin) * sizeof(float));
  }
  return absl::OkStatus();
}

}  // namespace flotilla::model
