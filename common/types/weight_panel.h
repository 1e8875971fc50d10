// WeightPanel: weights of up to 32 outputs of a matrix in a window of K, as codes and scales or as
// plain numbers, in the order of outputs and k. It is the seam between what a file holds
// (model/weights/, one file for each format) and what a backend keeps in memory (kernels/packing/
// for CPUs, one file for each packed kind): neither knows the other.
//
// Plain data of the thread that fills it. Whoever fills it sets what the encoding names, and
// nothing else.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace flotilla {

inline constexpr int kPanelOutputs = 32;
// Windows begin at the multiples of this K in the rows of the file. No block of a format lies in
// two windows.
inline constexpr int kPanelWindow = 256;
// The number of consecutive k that have a scale and a minimum, unless the encoding says that scales
// are finer. A format with longer groups repeats them.
inline constexpr int kScaleGroup = 32;
// The number of consecutive k that have a factor, where the encoding has factors. All k of a window
// have one scale and one minimum then.
inline constexpr int kFactorGroup = 16;

// The number of consecutive k that have a scale in FP8.
inline constexpr int kLongGroup = 128;

// The activations that a checkpoint says its weights are multiplied by. `accurate` has its own and
// asks nobody; recipe `fast` multiplies 8-bit weights by these. An activation is
//   scale * (code - zero)   with codes of 8 bits,
// whose scale and zero are those that the checkpoint has (kStatic), or the row's absmax / 127 and
// none (kDynamic).
struct ActivationScheme {
  enum class Kind : uint8_t { kNone, kDynamic, kStatic };
  Kind kind = Kind::kNone;
  int8_t zero = 0;
  float scale = 0;

  bool operator==(const ActivationScheme&) const = default;
};

// The scale and the zero of a group, where they are codes themselves:
//   scale = scale_step * (scale_code - scale_zero)  and
//   zero = zero_step * (zero_code - zero_zero)  in fp32, step by step.
// The codes have three bits. The others are fp16, and the same for the tile of kTileOutputs outputs
// that the file has the weight in.
inline constexpr int kTileOutputs = 16;
struct CodedScale {
  uint8_t scale_code;
  uint8_t zero_code;
  uint16_t scale_step;
  uint16_t zero_step;
  uint16_t scale_zero;
  uint16_t zero_zero;

  bool operator==(const CodedScale&) const = default;
};

// What the numbers of a panel mean: the weight itself, or codes. The weight of a code is
//   scale * factor * (code - zero) + minimum * minimum factor  in fp32,
// which rounds once: with fp16 and bf16 scales the products are exact and only the sum rounds, and
// fp32 scales have no minimums. A part that the encoding does not have is left out. Scales that are
// codes have zeros that need not be whole, and code - zero is rounded, too. Outliers are added
// then, and the sum is rounded. Weights of equal encodings can be one matrix.
struct WeightEncoding {
  enum class Numbers : uint8_t { kFp32, kFp16, kBf16, kCodes };
  // The codes that there may be: all from low to high, or those of a table (ValuesOf). Of kFp8 the
  // codes are the bytes of FP8 (E4M3), and of kNf4 the places in kNf4Values; there the value takes
  // the place of the code.
  enum class Values : uint8_t { kAll, kIq4, kFp4, kFp8, kNf4 };
  // kCoded: scales and zeros are CodedScale.
  enum class Scales : uint8_t { kFp16, kBf16, kFp32, kCoded };

  Numbers numbers = Numbers::kFp32;
  // What follows is about codes.
  Values values = Values::kAll;
  Scales scales = Scales::kFp16;
  // The k that have a scale, and a zero: kFactorGroup, kScaleGroup, kLongGroup, or 1 where the k of
  // a group are anywhere.
  uint8_t scale_group = kScaleGroup;
  int8_t low = 0;  // every code is within [low, high]
  int8_t high = 0;
  bool has_zeros = false;
  bool has_factors = false;
  bool has_minimums = false;
  bool has_minimum_factors = false;
  bool has_outliers = false;
  // Of groups whose k are anywhere: their number, and a hash of the group of each k, so that
  // matrices of equal encodings have the same groups.
  int32_t groups = 0;
  uint64_t order = 0;
  // Not kNone: the weights are multiplied by such activations, and all k of a row have one scale
  // and one zero.
  ActivationScheme activations;

  bool operator==(const WeightEncoding&) const = default;
};

// The k of a row up to which sums of products with activations of 8 bits hold in 32 bits: products
// are of magnitudes up to 128 * 128, or with zeros up to 255 * 256. The sum of as many activations
// is exact in fp32.
constexpr int64_t MostInt8Inputs(const WeightEncoding& encoding) {
  return encoding.has_zeros || encoding.activations.zero != 0 ? 32'896 : 131'040;
}

// The codes of a table, by the index that a file has. kIq4 is that of IQ4_NL and IQ4_XS, and kFp4
// has twice the values of FP4 (E2M1) in MXFP4 and NVFP4.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr const int8_t (&ValuesOf(WeightEncoding::Values table))[16] {
  return table == WeightEncoding::Values::kIq4 ? kIq4Values : kFp4Values;
}

// NF4 (Dettmers et al., QLoRA, 2023, appendix E): the values that bitsandbytes has, in fp32.
inline constexpr float kNf4Values[16] = {-1.0f,
                                         -0.6961928009986877f,
                                         -0.5250730514526367f,
                                         -0.39491748809814453f,
                                         -0.28444138169288635f,
                                         -0.18477343022823334f,
                                         -0.09105003625154495f,
                                         0.0f,
                                         0.07958029955625534f,
                                         0.16093020141124725f,
                                         0.24611230194568634f,
                                         0.33791524171829224f,
                                         0.44070982933044434f,
                                         0.5626170039176941f,
                                         0.7229568362236023f,
                                         1.0f};

// FP8 E4M3 (Micikevicius et al., FP8 Formats for Deep Learning, 2022): a sign, four bits of
// exponent with the bias 7, three of mantissa. Those of all ones are no number; there is no
// infinity.
constexpr bool IsFp8Number(uint8_t byte) { return (byte & 0x7F) != 0x7F; }
constexpr float Fp8ToFloat(uint8_t byte) {
  if (!IsFp8Number(byte)) return std::numeric_limits<float>::quiet_NaN();
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  // In units of 2^-9, which is the least number.
  const int units = exponent == 0 ? mantissa : (8 + mantissa) << (exponent - 1);
  const float value = static_cast<float>(units) * 0x1p-9f;
  return (byte & 0x80) != 0 ? -value : value;
}

// The nearest of them, ties to even, at most 448 in magnitude. `value` is a number.
constexpr uint8_t FloatToFp8(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>(bits >> 31 << 7);
  constexpr uint32_t kLargest = std::bit_cast<uint32_t>(448.0f);
  uint32_t size = bits & 0x7FFFFFFF;
  if (size > kLargest) size = kLargest;
  if (size < std::bit_cast<uint32_t>(0x1p-6f)) {
    // Subnormal, or the least that is not. The sum has the number of units of 2^-9 in its lowest
    // bits, rounded by the addition.
    const float units = std::bit_cast<float>(size) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(units) & 0xF));
  }
  const uint32_t rounded = size + 0x7FFFF + (size >> 20 & 1);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

// One output's window. Index k is the k of the row modulo kPanelWindow.
struct WeightRow {
  alignas(64) std::byte numbers[kPanelWindow * sizeof(float)];  // [256] fp32, fp16 or bf16
  int8_t codes[kPanelWindow];
  uint16_t scales[kPanelWindow];                   // [256 / scale_group] fp16 or bf16
  float wide_scales[kPanelWindow / kFactorGroup];  // [256 / scale_group] in their place: fp32
  int16_t zeros[kPanelWindow];                     // [256 / scale_group]
  uint16_t groups[kPanelWindow];                   // of each k, less than encoding.groups
  uint16_t minimums[kPanelWindow / kScaleGroup];   // fp16
  int8_t factors[kPanelWindow / kFactorGroup];
  int8_t minimum_factors[kPanelWindow / kFactorGroup];
  CodedScale coded_scales[kPanelWindow];  // [256 / scale_group] in place of scales and zeros
  uint16_t outliers[kPanelWindow];        // of each k, fp16; 0: none
};

struct WeightPanel {
  WeightEncoding encoding;
  int outputs = 0;  // 1 .. kPanelOutputs
  int begin = 0;    // the k within the window that the panel has: [begin, end), multiples of 32
  int end = 0;
  WeightRow rows[kPanelOutputs];  // [outputs]
};

}  // namespace flotilla
