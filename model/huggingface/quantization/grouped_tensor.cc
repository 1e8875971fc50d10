#include "model/huggingface/quantization/grouped_tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/hash/hash.h"

namespace flotilla::model {
namespace {

using Numbers = WeightEncoding::Numbers;
using Scales = WeightEncoding::Scales;
using Values = WeightEncoding::Values;

constexpr float kNoNumber = std::numeric_limits<float>::quiet_NaN();

float PowerOfTwo(uint8_t exponent) {  // 2^(exponent - 127)
  return exponent == 255 ? kNoNumber : std::ldexp(1.0f, exponent - 127);
}

// What scales are in an encoding whose codes are integers.
Scales ScalesOf(GgmlType type) {
  return type == GgmlType::kF16    ? Scales::kFp16
         : type == GgmlType::kBF16 ? Scales::kBf16
                                   : Scales::kFp32;
}

int64_t GroupsOf(const GroupedTensor::Shape& shape) {
  return (shape.inputs + shape.group - 1) / shape.group;
}

// Whether whole runs of `span` k have one scale.
bool HasRuns(const GroupedTensor::Shape& shape, int span) {
  return shape.order.empty() && (shape.group % span == 0 || shape.group >= shape.inputs);
}

// The encoding if kinds keep codes in such groups, or one that names the group of each k, or fp32.
WeightEncoding Fitting(const GroupedTensor::Shape& shape, const WeightEncoding& encoding) {
  constexpr int64_t kMostInputs = 1 << 20;  // of any model
  if (shape.inputs % kScaleGroup != 0 || shape.inputs > kMostInputs) return {};
  if (HasRuns(shape, encoding.scale_group)) return encoding;
  const int64_t groups = GroupsOf(shape);
  if (!encoding.has_zeros || encoding.scales == Scales::kFp32 ||
      groups > std::numeric_limits<uint16_t>::max()) {
    return {};
  }
  std::vector<int32_t> order = shape.order;
  order.reserve(static_cast<size_t>(shape.inputs));
  for (int64_t k = 0; shape.order.empty() && k < shape.inputs; ++k) {
    order.push_back(static_cast<int32_t>(k / shape.group));
  }
  WeightEncoding ordered = encoding;
  ordered.scale_group = 1;
  ordered.groups = static_cast<int32_t>(groups);
  ordered.order = absl::HashOf(order);
  return ordered;
}

}  // namespace

float NumberGrid::At(int64_t row, int64_t group) const {
  const int64_t index = row / rows_each * row_step + group * group_step;
  switch (type) {
    case GgmlType::kF16:
      return HalfToFloat(LoadElement<uint16_t>(data, index));
    case GgmlType::kBF16:
      return std::bit_cast<float>(uint32_t{LoadElement<uint16_t>(data, index)} << 16);
    case GgmlType::kF8_E4M3:
      return Fp8ToFloat(LoadElement<uint8_t>(data, index));
    case GgmlType::kF8_E8M0:
    case GgmlType::kU8:
      return PowerOfTwo(LoadElement<uint8_t>(data, index));
    default:
      return LoadElement<float>(data, index);
  }
}

GroupedTensor::GroupedTensor(Shape shape, const WeightEncoding& encoding,
                             std::vector<std::span<const std::byte>> parts)
    : shape_(std::move(shape)), encoding_(Fitting(shape_, encoding)), parts_(std::move(parts)) {
  format_ = shape_.format;
  if (encoding_.numbers != Numbers::kCodes) format_ += " (fp32)";
}

void GroupedTensor::Read(int64_t row, int64_t k_begin, int64_t k_end, WeightRow& out) const {
  int16_t codes[kPanelWindow];
  ReadCodes(row, k_begin, k_end, codes);
  const int64_t window = k_begin / kPanelWindow * kPanelWindow;
  const auto count = static_cast<int>(k_end - k_begin), at = static_cast<int>(k_begin - window);
  if (encoding_.numbers != Numbers::kCodes) {
    int64_t group = -1;
    float scale = 0;
    int zero = 0;
    for (int i = 0; i < count; ++i) {
      if (const int64_t next = GroupOf(k_begin + i); next != group) {
        group = next;
        scale = ScaleOf(row, group);
        zero = ZeroOf(row, group);
      }
      const float weight = scale * ValueOf(codes[i], zero);
      std::memcpy(out.numbers + (at + i) * sizeof weight, &weight, sizeof weight);
    }
    return;
  }
  for (int i = 0; i < count; ++i) out.codes[at + i] = static_cast<int8_t>(codes[i]);
  const int span = encoding_.scale_group;
  for (int i = at / span; i * span < at + count; ++i) {
    const int64_t group = GroupOf(window + i * span);
    const float scale = ScaleOf(row, group);
    if (encoding_.scales == Scales::kFp32) {
      out.wide_scales[i] = scale;
    } else if (encoding_.scales == Scales::kBf16) {
      out.scales[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(scale) >> 16);
    } else {
      out.scales[i] = FloatToHalf(scale);
    }
    if (encoding_.has_zeros) out.zeros[i] = static_cast<int16_t>(ZeroOf(row, group));
    out.groups[i] = static_cast<uint16_t>(group);
  }
}

IntegerTensor::IntegerTensor(Shape shape, Parts parts)
    : IntegerTensor(shape, parts, EncodingFor(shape, parts)) {}

IntegerTensor::IntegerTensor(Shape shape, Parts parts, const WeightEncoding& encoding)
    : GroupedTensor(std::move(shape), encoding, parts.data),
      at_(std::move(parts)),
      offset_(encoding.has_zeros ? at_.codes.bits == 8 ? 128 : 0 : 1 << (at_.codes.bits - 1)) {}

int IntegerTensor::StoredZero(const Parts& parts, int64_t row, int64_t group) {
  if (parts.zeros.words.empty()) return 1 << (parts.codes.bits - 1);
  return parts.zeros.At(group, Place(parts, row)) + parts.zero_offset;
}

// Codes of 4 and of 8 bits whose zeros are all the middle need none, unless each k names its group;
// then codes of 2 and 3 bits take four.
WeightEncoding IntegerTensor::EncodingFor(const Shape& shape, const Parts& parts) {
  const bool ordered = !HasRuns(shape, kScaleGroup);
  const int bits = parts.codes.bits == 8 || !ordered ? parts.codes.bits : 4;
  const Scales scales = ScalesOf(parts.scales.type);
  bool has_zeros = ordered || bits < 4;
  if (!parts.zeros.words.empty()) {
    for (int64_t row = 0; row < shape.rows && !has_zeros; ++row) {
      for (int64_t group = 0; group < GroupsOf(shape) && !has_zeros; ++group) {
        has_zeros = StoredZero(parts, row, group) != 1 << (bits - 1);
      }
    }
  }
  // The kind of 4 bits with fp16 scales keeps eight times the scale.
  constexpr float kMostScale = 8192;
  if (!has_zeros && bits < 8 && scales == Scales::kFp16) {
    for (int64_t row = 0; row < shape.rows && !has_zeros; ++row) {
      for (int64_t group = 0; group < GroupsOf(shape) && !has_zeros; ++group) {
        has_zeros = std::fabs(parts.scales.At(row, group)) >= kMostScale;
      }
    }
  }
  // No kind has these.
  if (scales == Scales::kFp32 && (has_zeros || bits < 8)) has_zeros = true;
  if (scales == Scales::kFp32 && has_zeros) return {.has_zeros = true};
  const int low = has_zeros && bits < 8 ? 0 : -(1 << (bits - 1));
  return {.numbers = Numbers::kCodes,
          .scales = scales,
          .low = static_cast<int8_t>(low),
          .high = static_cast<int8_t>(low + (1 << bits) - 1),
          .has_zeros = has_zeros};
}

void IntegerTensor::ReadCodes(int64_t row, int64_t k_begin, int64_t k_end, int16_t* codes) const {
  const BitGrid& grid = at_.codes;
  if (at_.lines_are_inputs) {
    const int64_t place = Place(at_, row);
    for (int64_t k = k_begin; k < k_end; ++k) {
      *codes++ = static_cast<int16_t>(grid.At(k, place) - offset_);
    }
    return;
  }
  // k_begin is a multiple of 32, where a word begins.
  int64_t word = row * grid.line_step + k_begin / 32 * grid.bits * grid.word_step;
  uint64_t buffer = 0;
  int have = 0;
  for (int64_t k = k_begin; k < k_end; ++k) {
    if (have < grid.bits) {
      buffer |= uint64_t{LoadElement<uint32_t>(grid.words, word)} << have;
      have += 32;
      word += grid.word_step;
    }
    *codes++ = static_cast<int16_t>(static_cast<int>(buffer & ((1u << grid.bits) - 1)) - offset_);
    buffer >>= grid.bits;
    have -= grid.bits;
  }
}

float IntegerTensor::ScaleOf(int64_t row, int64_t group) const { return at_.scales.At(row, group); }

int IntegerTensor::ZeroOf(int64_t row, int64_t group) const {
  return StoredZero(at_, row, group) - offset_;
}

namespace {

WeightEncoding EncodingOfBytes(const GroupedTensor::Shape& shape, ByteTensor::Bytes bytes,
                               GgmlType scales, bool has_zeros) {
  if (bytes == ByteTensor::Bytes::kFp8) {
    return {.numbers = Numbers::kCodes,
            .values = Values::kFp8,
            .scales = Scales::kFp32,
            .scale_group = kLongGroup};
  }
  has_zeros = has_zeros || !HasRuns(shape, kScaleGroup);
  if (has_zeros && ScalesOf(scales) == Scales::kFp32) return {};  // no kind has these
  return {.numbers = Numbers::kCodes,
          .scales = ScalesOf(scales),
          .low = -128,
          .high = 127,
          .has_zeros = has_zeros};
}

}  // namespace

ByteTensor::ByteTensor(Shape shape, Bytes bytes, std::span<const std::byte> codes,
                       const NumberGrid& scales, std::span<const std::byte> zeros,
                       const ActivationScheme& activations,
                       std::vector<std::span<const std::byte>> parts)
    : GroupedTensor(shape, EncodingOfBytes(shape, bytes, scales.type, !zeros.empty()),
                    std::move(parts)),
      bytes_(bytes),
      codes_(codes),
      scales_(scales),
      zeros_(zeros),
      activations_(activations) {}

ByteTensor::ByteTensor(Shape shape, std::span<const std::byte> codes, const NumberGrid& row_maxima,
                       std::vector<std::span<const std::byte>> parts)
    : GroupedTensor(shape, EncodingOfBytes(shape, Bytes::kInt8, GgmlType::kF32, false),
                    std::move(parts)),
      bytes_(Bytes::kInt8),
      codes_(codes),
      scales_(row_maxima),
      divisor_(127) {}

WeightEncoding ByteTensor::fast_encoding() const {
  WeightEncoding fast = encoding();
  if (bytes_ != Bytes::kInt8 || fast.numbers != Numbers::kCodes || fast.scale_group == 1)
    return fast;
  if (shape().group < shape().inputs) return fast;
  fast.activations = activations_;
  return shape().inputs <= MostInt8Inputs(fast) ? fast : encoding();
}

void ByteTensor::ReadCodes(int64_t row, int64_t k_begin, int64_t k_end, int16_t* codes) const {
  const int64_t begin = row * shape().inputs;
  for (int64_t k = k_begin; k < k_end; ++k) *codes++ = LoadElement<int8_t>(codes_, begin + k);
}

float ByteTensor::ScaleOf(int64_t row, int64_t group) const {
  return scales_.At(row, group) / divisor_;
}

int ByteTensor::ZeroOf(int64_t row, int64_t group) const {
  if (zeros_.empty()) return 0;
  return LoadElement<int8_t>(zeros_, row * scales_.row_step + group * scales_.group_step);
}

float ByteTensor::ValueOf(int code, int zero) const {
  if (bytes_ == Bytes::kInt8) return static_cast<float>(code - zero);
  return Fp8ToFloat(static_cast<uint8_t>(code));
}

Fp4Tensor::Fp4Tensor(Shape shape, std::span<const std::byte> codes, const NumberGrid& scales,
                     float divisor, std::vector<std::span<const std::byte>> parts)
    : GroupedTensor(shape,
                    scales.type == GgmlType::kU8 ? EncodingOf(GgmlType::kMXFP4)
                                                 : WeightEncoding{.numbers = Numbers::kCodes,
                                                                  .values = Values::kFp4,
                                                                  .scales = Scales::kFp32,
                                                                  .scale_group = kFactorGroup,
                                                                  .low = -12,
                                                                  .high = 12},
                    std::move(parts)),
      codes_(codes),
      scales_(scales),
      divisor_(divisor) {}

void Fp4Tensor::ReadCodes(int64_t row, int64_t k_begin, int64_t k_end, int16_t* codes) const {
  const int64_t begin = row * shape().inputs;
  for (int64_t k = k_begin; k < k_end; ++k) {
    const auto both = LoadElement<uint8_t>(codes_, (begin + k) / 2);
    *codes++ = kFp4Values[k % 2 == 0 ? both & 15 : both >> 4];
  }
}

// kFp4Values are twice the values. A scale whose largest product is not finite is no number.
float Fp4Tensor::ScaleOf(int64_t row, int64_t group) const {
  const float scale = scales_.At(row, group) / divisor_ / 2;
  return std::isfinite(scale * 12) ? scale : kNoNumber;
}

}  // namespace flotilla::model
