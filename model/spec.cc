#include "model/spec.h"

#include <algorithm>
#include <cmath>

namespace flotilla::model {

float AlibiSlope(uint32_t head, uint32_t heads) {
  // As in Hugging Face's build_alibi_tensor: powers of 2^(-8 / n), n the power of two that is not
  // above `heads`; further heads get the odd powers of its square root.
  uint32_t powers = 1;
  while (powers * 2 <= heads) powers *= 2;
  const float base = static_cast<float>(std::pow(2.0, -8.0 / powers));
  if (head < powers) return static_cast<float>(std::pow(double{base}, head + 1));
  const float root = static_cast<float>(std::pow(2.0, -4.0 / powers));
  return static_cast<float>(std::pow(double{root}, 2 * (head - powers) + 1));
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
