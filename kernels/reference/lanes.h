// The fixed order in which 16 or 64 partial results become one (see ops.h).
#pragma once

namespace flotilla::kernels::reference {

template <int kLanes>
float LaneTree(const float (&lanes)[kLanes]) {
  float sums[kLanes];
  for (int i = 0; i < kLanes; ++i) sums[i] = lanes[i];
  for (int half = kLanes / 2; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

}  // namespace flotilla::kernels::reference
