// WeightPanel: weights of up to 32 outputs of a matrix in a window of K, as codes and scales or as
// plain numbers, in the order of outputs and k. It is the seam between what a file holds
// (model/weights/, one file for each format) and what a backend keeps in memory (kernels/packing/
// for CPUs, one file for each packed kind): neither knows the other.
//
// Plain data of the thread that fills it. Whoever fills it sets what the encoding names, and
// nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flotilla {

inline constexpr int kPanelOutputs = 32;
// Windows begin at the multiples of this K in the rows of the file. No block of a format lies in
// two windows.
inline constexpr int kPanelWindow = 256;
// The number of consecutive k that have a scale and a minimum. A format with longer groups repeats
// them.
inline constexpr int kScaleGroup = 32;
// The number of consecutive k that have a factor, where the encoding has factors. All k of a window
// have one scale and one minimum then.
inline constexpr int kFactorGroup = 16;

// What the numbers of a panel mean: the weight itself, or codes. The weight of a code is
//   scale * factor * code + minimum * minimum factor  in fp32,
// where the products are exact and only the sum rounds. A part that the encoding does not
// have is left out. Weights of equal encodings can be one matrix.
struct WeightEncoding {
  enum class Numbers : uint8_t { kFp32, kFp16, kBf16, kCodes };

  Numbers numbers = Numbers::kFp32;
  // What follows is about codes.
  int8_t low = 0;  // every code is within [low, high]
  int8_t high = 0;
  bool has_factors = false;
  bool has_minimums = false;
  bool has_minimum_factors = false;

  bool operator==(const WeightEncoding&) const = default;
};

// One output's window. Index k is the k of the row modulo kPanelWindow.
struct WeightRow {
  alignas(64) std::byte numbers[kPanelWindow * sizeof(float)];  // [256] fp32, fp16 or bf16
  int8_t codes[kPanelWindow];
  uint16_t scales[kPanelWindow / kScaleGroup];    // fp16
  uint16_t minimums[kPanelWindow / kScaleGroup];  // fp16
  int8_t factors[kPanelWindow / kFactorGroup];
  int8_t minimum_factors[kPanelWindow / kFactorGroup];
};

struct WeightPanel {
  WeightEncoding encoding;
  int outputs = 0;  // 1 .. kPanelOutputs
  int begin = 0;    // the k within the window that the panel has: [begin, end), multiples of 32
  int end = 0;
  WeightRow rows[kPanelOutputs];  // [outputs]
};

}  // namespace flotilla
