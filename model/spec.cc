#include "model/spec.h"

#include <algorithm>
#include <cmath>

namespace flotilla::model {

// As in Hugging Face's build_alibi_tensor: powers of 2^(-8 / n), n the power of two that is not
// above `heads`; further heads get the odd powers of its square root. Only square roots and
// products, so that the bits are the same everywhere.
float AlibiSlope(uint32_t head, uint32_t heads) {
  uint32_t powers = 1;
  double base = 1.0 / 256, root = 1.0 / 16;
  for (; powers * 2 <= heads; powers *= 2) {
    base = std::sqrt(base);
    root = std::sqrt(root);
  }
  const bool further = head >= powers;
  const double factor = static_cast<float>(further ? root : base);
  double slope = factor;
  for (uint32_t i = further ? 2 * (head - powers) : head; i > 0; --i) slope *= factor;
  return static_cast<float>(slope);
}

uint32_t FfnSpec::split() const {
  constexpr uint32_t kLargest = 128, kSmallest = 32, kFewest = 4, kMost = 256;
  uint32_t split = kLargest;
  const auto count = [&] { return (width + split - 1) / split; };
  while (split > kSmallest && count() < kFewest) split /= 2;
  while (count() > kMost) split *= 2;
  return split;
}

}  // namespace flotilla::model
