#include "model/tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/text.h"
#include "model/weights/weight_format.h"

namespace flotilla::model {
namespace {

using Numbers = WeightEncoding::Numbers;

float Bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// The scale number `group` of a window.
float ScaleOf(const WeightEncoding& encoding, const WeightRow& row, int group) {
  switch (encoding.scales) {
    case WeightEncoding::Scales::kFp16:
      return HalfToFloat(row.scales[group]);
    case WeightEncoding::Scales::kBf16:
      return Bf16ToFloat(row.scales[group]);
    case WeightEncoding::Scales::kFp32:
      break;
    case WeightEncoding::Scales::kCoded: {
      const CodedScale& coded = row.coded_scales[group];
      return HalfToFloat(coded.scale_step) *
             (static_cast<float>(coded.scale_code) - HalfToFloat(coded.scale_zero));
    }
  }
  return row.wide_scales[group];
}

// The zero of scales that are codes.
float CodedZeroOf(const CodedScale& coded) {
  return HalfToFloat(coded.zero_step) *
         (static_cast<float>(coded.zero_code) - HalfToFloat(coded.zero_zero));
}

// What scales multiply.
float ValueOf(const WeightEncoding& encoding, int8_t code, int zero) {
  switch (encoding.values) {
    case WeightEncoding::Values::kFp8:
      return Fp8ToFloat(static_cast<uint8_t>(code));
    case WeightEncoding::Values::kNf4:
      return kNf4Values[code];
    default:
      return static_cast<float>(code - zero);
  }
}

// At least the magnitude of what scales multiply, where they may be so large that it matters.
float LargestValue(const WeightEncoding& encoding) {
  if (encoding.scales == WeightEncoding::Scales::kFp16) return 1;
  // A scale is below 2^32, and so is a zero.
  if (encoding.scales == WeightEncoding::Scales::kCoded) return 0x1p33f;
  switch (encoding.values) {
    case WeightEncoding::Values::kFp8:
      return 448;
    case WeightEncoding::Values::kNf4:
      return 1;
    case WeightEncoding::Values::kFp4:
      return 12;
    default:
      return encoding.has_zeros ? 256 : 128;
  }
}

// Decodes codes with coded scales, and adds the outliers.
void DecodeCoded(const WeightEncoding& encoding, const WeightRow& row, int begin, int end,
                 float* out) {
  for (int k = begin; k < end; ++k) {
    const int group = k / encoding.scale_group;
    const float zero = CodedZeroOf(row.coded_scales[group]);
    const float dense = ScaleOf(encoding, row, group) * (static_cast<float>(row.codes[k]) - zero);
    const bool has_outlier = (row.outliers[k] & 0x7FFF) != 0;
    *out++ = has_outlier ? dense + HalfToFloat(row.outliers[k]) : dense;
  }
}

// Decodes codes by the formula of weight_panel.h, kFactorGroup at a time.
void DecodeCodes(const WeightEncoding& encoding, const WeightRow& row, int begin, int end,
                 float* out) {
  if (encoding.scales == WeightEncoding::Scales::kCoded) {
    return DecodeCoded(encoding, row, begin, end, out);
  }
  for (int k = begin; k < end; k += kFactorGroup, out += kFactorGroup) {
    float scale = ScaleOf(encoding, row, k / encoding.scale_group);
    if (encoding.has_factors) scale *= static_cast<float>(row.factors[k / kFactorGroup]);
    int zero = encoding.has_zeros ? row.zeros[k / encoding.scale_group] : 0;
    for (int j = 0; j < kFactorGroup; ++j) {
      if (encoding.scale_group == 1) {
        scale = ScaleOf(encoding, row, k + j);
        zero = row.zeros[k + j];
      }
      out[j] = scale * ValueOf(encoding, row.codes[k + j], zero);
    }
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

// Checks that panels of the tensor can have `encoding`.
absl::Status CheckEncoding(const Tensor& tensor, const WeightEncoding& encoding) {
  if (!IsDecodable(tensor)) return CannotBeDecoded(tensor.type);
  if (encoding == EncodingOf(tensor) || encoding == FastEncodingOf(tensor) ||
      encoding == WeightEncoding{}) {
    return absl::OkStatus();
  }
  return InvalidArgument("panels of ", TypeName(tensor),
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

// Checks the scales, the minimums and the codes of the elements from `begin` to `end` of a window.
absl::Status CheckNumbers(const WeightEncoding& encoding, const WeightRow& row, int begin,
                          int end) {
  const auto check = [](std::string_view what, float value) {
    if (std::isfinite(value)) return absl::OkStatus();
    return InvalidArgument("a ", what, " is ", std::isnan(value) ? "no number" : "infinite");
  };
  const int span = encoding.scale_group;
  absl::Status status;
  const float largest = LargestValue(encoding);
  for (int group = begin / span; group * span < end; ++group) {
    const float scale = ScaleOf(encoding, row, group);
    status.Update(check("scale", scale));
    status.Update(check("scale times the largest code", scale * largest));
    if (encoding.scales != WeightEncoding::Scales::kCoded) continue;
    status.Update(check("zero", CodedZeroOf(row.coded_scales[group])));
  }
  for (int k = begin; encoding.has_outliers && k < end; ++k) {
    status.Update(check("outlier", HalfToFloat(row.outliers[k])));
  }
  for (int k = begin; encoding.has_minimums && k < end; k += kScaleGroup) {
    status.Update(check("minimum", HalfToFloat(row.minimums[k / kScaleGroup])));
  }
  if (encoding.values == WeightEncoding::Values::kFp8) {
    const bool numbers = std::all_of(row.codes + begin, row.codes + end, [](int8_t code) {
      return IsFp8Number(static_cast<uint8_t>(code));
    });
    if (!numbers) status.Update(InvalidArgument("a weight is no number"));
  }
  return status;
}

// Checks the fp32 weights of the elements from `begin` to `end`, which were scales and codes.
absl::Status CheckWeights(const WeightRow& row, int begin, int end) {
  for (int k = begin; k < end; ++k) {
    const auto weight = LoadAs<float>(row.numbers + k * sizeof(float));
    if (std::isfinite(weight)) continue;
    return InvalidArgument("a weight is ", std::isnan(weight) ? "no number" : "infinite");
  }
  return absl::OkStatus();
}

// Ends row number `index` of a matrix, of which `end` elements have been read in `encoding`: checks
// them, turns them into the encoding of the panel, and fills up with zeros.
absl::Status EndRow(const WeightEncoding& encoding, int64_t index, int end, WeightPanel& panel,
                    WeightRow& row) {
  if (encoding.numbers == Numbers::kCodes) {
    const absl::Status status = CheckNumbers(encoding, row, panel.begin, end);
    if (!status.ok()) return InvalidArgument("row ", index, ": ", status.message());
  }
  if (panel.encoding != encoding) {
    float weights[kPanelWindow];
    Decode(encoding, row, panel.begin, end, weights);
    std::memcpy(row.numbers + panel.begin * sizeof(float), weights,
                (end - panel.begin) * sizeof(float));
  }
  if (end == panel.end) return absl::OkStatus();
  const size_t bytes = panel.encoding.numbers == Numbers::kFp32 ? 4 : 2;
  std::memset(row.numbers + end * bytes, 0, (panel.end - end) * bytes);
  return absl::OkStatus();
}

// Decodes elements of a row of a matrix that lie in one window: at least [begin, end). Returns
// where they begin.
int64_t DecodeSome(const Tensor& tensor, int64_t row, int64_t begin, int64_t end,
                   std::span<float, kPanelWindow> out) {
  WeightRow read;
  const auto k = static_cast<int64_t>(tensor.dims[0]);
  const int64_t window = begin / kPanelWindow * kPanelWindow;
  const auto decode = [&](const WeightEncoding& encoding, int64_t first, int64_t last) {
    Decode(encoding, read, static_cast<int>(first - window), static_cast<int>(last - window),
           out.data());
    return first;
  };
  if (tensor.composite != nullptr) {
    tensor.composite->Read(tensor.first_row + row, begin, end, read);
    return decode(tensor.composite->encoding(), begin, end);
  }
  const WeightFormat& format = *FindWeightFormat(tensor.type);
  const GgmlTypeInfo& info = InfoOf(tensor.type);
  const int64_t elements = info.block_elements;
  const int64_t first = begin / elements * elements;
  const int64_t last = (end + elements - 1) / elements * elements;
  const int64_t block = (row * k + first) / elements;
  format.read(tensor.data.data() + block * info.block_bytes, static_cast<int>(first - window),
              static_cast<int>(last - window), read);
  return decode(format.encoding, first, last);
}

// Reads the columns `rows` of a matrix in fp32.
void TransposeDecoded(const Tensor& tensor, std::span<const int64_t> rows, int64_t k_begin,
                      int64_t k_end, WeightPanel& panel) {
  const auto count = static_cast<int64_t>(tensor.dims[0]);
  const int64_t window = k_begin / kPanelWindow * kPanelWindow;
  float decoded[kPanelWindow];
  for (int64_t at = k_begin; at < k_end; ++at) {
    int64_t begin = 0, end = 0;  // of the group that the columns lie in
    int64_t first = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] < begin || rows[i] >= end) {
        begin = rows[i] / kScaleGroup * kScaleGroup;
        end = std::min<int64_t>(begin + kScaleGroup, count);
        first = DecodeSome(tensor, at, begin, end, decoded);
      }
      std::memcpy(panel.rows[i].numbers + (at - window) * sizeof(float),
                  decoded + (rows[i] - first), sizeof(float));
    }
  }
}

// ReadPanel of a tensor that has a composite.
absl::Status ReadComposite(const Tensor& tensor, std::span<const int64_t> rows, int64_t k_begin,
                           int64_t k_end, const WeightEncoding& encoding, WeightPanel& panel) {
  const auto k = static_cast<int64_t>(tensor.dims[0]);
  const auto count = static_cast<int64_t>(tensor.elements()) / k;
  absl::Status status = CheckRange(count, k, rows, k_begin, k_end);
  if (!status.ok()) return status;
  BeginPanel(encoding, rows.size(), k_begin, k_end, panel);
  const auto end = static_cast<int>(k_end - k_begin / kPanelWindow * kPanelWindow);
  const WeightEncoding read =
      encoding == tensor.composite->fast_encoding() ? encoding : tensor.composite->encoding();
  for (size_t i = 0; i < rows.size(); ++i) {
    WeightRow& row = panel.rows[i];
    tensor.composite->Read(tensor.first_row + rows[i], k_begin, k_end, row);
    if (read.numbers == Numbers::kFp32) {
      status = CheckWeights(row, panel.begin, end);
      if (!status.ok()) return InvalidArgument("row ", rows[i], ": ", status.message());
    }
    status = EndRow(read, rows[i], end, panel, row);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

bool IsDecodable(GgmlType type) { return FindWeightFormat(type) != nullptr; }

bool IsDecodable(const Tensor& tensor) {
  return tensor.composite != nullptr || IsDecodable(tensor.type);
}

bool IsPlain(const Tensor& tensor) {
  return IsDecodable(tensor) && EncodingOf(tensor).numbers != Numbers::kCodes;
}

std::string_view TypeName(const Tensor& tensor) {
  return tensor.composite != nullptr ? tensor.composite->format() : GgmlTypeName(tensor.type);
}

uint64_t Tensor::bytes() const {
  if (composite == nullptr) return data.size();
  uint64_t bytes = 0;
  for (const std::span<const std::byte> part : composite->parts()) bytes += part.size();
  return bytes / static_cast<uint64_t>(composite->rows()) * (elements() / dims[0]);
}

WeightEncoding EncodingOf(GgmlType type) {
  const WeightFormat* format = FindWeightFormat(type);
  return format == nullptr ? WeightEncoding{} : format->encoding;
}

WeightEncoding EncodingOf(const Tensor& tensor) {
  return tensor.composite != nullptr ? tensor.composite->encoding() : EncodingOf(tensor.type);
}

WeightEncoding FastEncodingOf(const Tensor& tensor) {
  return tensor.composite != nullptr ? tensor.composite->fast_encoding() : EncodingOf(tensor.type);
}

absl::Status DecodeRow(const Tensor& tensor, int64_t row, std::span<float> out) {
  if (tensor.composite == nullptr) {
    const size_t bytes = tensor.data.size() / (tensor.elements() / tensor.dims[0]);
    return DequantizeRow(tensor.type, tensor.data.subspan(static_cast<size_t>(row) * bytes, bytes),
                         out);
  }
  WeightRow window;
  const auto k = static_cast<int64_t>(out.size());
  for (int64_t begin = 0; begin < k; begin += kPanelWindow) {
    const int64_t end = std::min<int64_t>(begin + kPanelWindow, k);
    tensor.composite->Read(tensor.first_row + row, begin, end, window);
    Decode(tensor.composite->encoding(), window, 0, static_cast<int>(end - begin),
           out.data() + begin);
  }
  return absl::OkStatus();
}

absl::Status DequantizeRow(GgmlType type, std::span<const std::byte> bytes, std::span<float> out) {
  const WeightFormat* format = FindWeightFormat(type);
  if (format == nullptr) return CannotBeDecoded(type);
  const GgmlTypeInfo& info = InfoOf(type);
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
  if (absl::Status status = CheckEncoding(tensor, encoding); !status.ok()) return status;
  if (tensor.composite != nullptr) {
    return ReadComposite(tensor, rows, k_begin, k_end, encoding, panel);
  }
  const WeightFormat& format = *FindWeightFormat(tensor.type);
  const GgmlTypeInfo& info = InfoOf(tensor.type);
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
    format.read(tensor.data.data() + rows[i] * row_bytes + first / elements * info.block_bytes,
                static_cast<int>(first - window), static_cast<int>(last - window), row);
    status = EndRow(format.encoding, rows[i], static_cast<int>(k_end - window), panel, row);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckRows(const Tensor& tensor) {
  if (IsPlain(tensor) && tensor.composite == nullptr) return absl::OkStatus();
  const WeightEncoding encoding = EncodingOf(tensor);
  const auto k = static_cast<int64_t>(tensor.dims[0]);
  const auto count = static_cast<int64_t>(tensor.elements()) / k;
  const auto panel = std::make_unique<WeightPanel>();
  for (int64_t row = 0; row < count; row += kPanelOutputs) {
    std::vector<int64_t> rows(static_cast<size_t>(std::min<int64_t>(kPanelOutputs, count - row)));
    std::iota(rows.begin(), rows.end(), row);
    for (int64_t first = 0; first < k; first += kPanelWindow) {
      const int64_t last = std::min<int64_t>(first + kPanelWindow, k);
      absl::Status status = ReadPanel(tensor, rows, first, last, encoding, *panel);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

WeightEncoding TransposedEncodingOf(const Tensor& tensor) {
  return IsPlain(tensor) && tensor.composite == nullptr ? EncodingOf(tensor) : WeightEncoding{};
}

absl::Status ReadTransposedPanel(const Tensor& tensor, std::span<const int64_t> rows,
                                 int64_t k_begin, int64_t k_end, const WeightEncoding& encoding,
                                 WeightPanel& panel) {
  if (!IsDecodable(tensor)) return CannotBeDecoded(tensor.type);
  if (encoding != TransposedEncodingOf(tensor) && encoding != WeightEncoding{}) {
    return InvalidArgument("transposed panels of ", TypeName(tensor),
                           " have the encoding of their numbers or fp32");
  }
  const auto count = static_cast<int64_t>(tensor.dims[0]);
  const auto k = static_cast<int64_t>(tensor.dims[1]);
  absl::Status status = CheckRange(count, k, rows, k_begin, k_end);
  if (!status.ok()) return status;
  const int64_t window = k_begin / kPanelWindow * kPanelWindow;
  BeginPanel(encoding, rows.size(), k_begin, k_end, panel);
  const WeightEncoding read = TransposedEncodingOf(tensor);
  if (read == WeightEncoding{} && tensor.type != GgmlType::kF32) {
    TransposeDecoded(tensor, rows, k_begin, k_end, panel);
  } else {
    const int64_t bytes = InfoOf(tensor.type).block_bytes;
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int64_t at = k_begin; at < k_end; ++at) {
        std::memcpy(panel.rows[i].numbers + (at - window) * bytes,
                    tensor.data.data() + (at * count + rows[i]) * bytes, bytes);
      }
    }
  }
  const auto end = static_cast<int>(k_end - window);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!IsPlain(tensor) || tensor.composite != nullptr) {
      status = CheckWeights(panel.rows[i], panel.begin, end);
      if (!status.ok()) return InvalidArgument("column ", rows[i], ": ", status.message());
    }
    status = EndRow(read, rows[i], end, panel, panel.rows[i]);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace flotilla::model
