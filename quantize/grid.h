// Grid: the integers that stand for the weights of a group. Pure functions.
//
//   weight = scale * (code - zero)  in fp32
//
// Codes are those of two's complement, from -2^(bits - 1) on. A symmetric grid has the zero 0.
#pragma once

#include <cstdint>
#include <span>

namespace flotilla::quantize {

enum class ScaleType : uint8_t { kBf16, kFp16 };

struct Grid {
  int bits = 4;  // 2 to 8
  bool symmetric = true;
  ScaleType scales = ScaleType::kBf16;

  int low() const { return -(1 << (bits - 1)); }
  int high() const { return (1 << (bits - 1)) - 1; }

  bool operator==(const Grid&) const = default;
};

// What the weights of a group have in common: a scale that the type of the grid holds exactly.
struct GroupScale {
  float scale = 0;
  int zero = 0;
};

// The scale that spans the weights, all finite: of a symmetric grid the largest magnitude over
// (2^bits - 1) / 2; else their span, 0 included, over 2^bits - 1, with the zero nearest to 0. So do
// compressed-tensors and AutoGPTQ. It is not finite if the type of the grid does not hold it.
GroupScale FitGroup(std::span<const float> weights, const Grid& grid);

// The code nearest to the weight. A scale of 0 has the code of 0.
int CodeOf(double weight, const GroupScale& group, const Grid& grid);

inline float WeightOf(int code, const GroupScale& group) {
  return group.scale * static_cast<float>(code - group.zero);
}

// The bits of a scale, and back.
uint16_t BitsOf(float scale, ScaleType type);
float ScaleOf(uint16_t bits, ScaleType type);

}  // namespace flotilla::quantize
