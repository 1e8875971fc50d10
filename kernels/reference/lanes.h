// The fixed order in which 16 partial results become one (see ops.h).
#pragma once

namespace flotilla::kernels::reference {

inline float LaneTree(const float lanes[16]) {
  float sums[16];
  for (int i = 0; i < 16; ++i) sums[i] = lanes[i];
  for (int half = 8; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

}  // namespace flotilla::kernels::reference
