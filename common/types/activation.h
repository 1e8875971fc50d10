// What an FFN does between its two products.
#pragma once

#include <cstdint>

namespace flotilla {

enum class Activation : uint8_t {
  kSilu,      // x / (1 + e^-x)
  kGelu,      // x (1 + erf(x / sqrt 2)) / 2
  kGeluTanh,  // the approximation of GELU by tanh: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) /
              // 2
  kRelu,      // max(x, 0)
  // Of gpt-oss, for gated FFNs only: gate at most 7, up within +-7,
  // gate / (1 + e^(-1.702 gate)) * (up + 1).
  kClippedSwiglu,
};

}  // namespace flotilla
