// Lengths: how long prompts and answers of a made workload are. Pure; a seed names the lengths.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/traces/seeded_random.h"

namespace flotilla {

// Lengths with a log-normal distribution: `mean` tokens, `sigma` the standard
// deviation of the logarithm; from 1 to `max`. The mean is that after the cut.
struct LengthDistribution {
  double mean = 1;
  double sigma = 0;
  std::uint32_t max = 1;
};

// INVALID_ARGUMENT: a value of `d` out of range; the message calls the lengths `name`.
absl::Status CheckLengths(absl::string_view name, const LengthDistribution& d);

// Draws lengths. The constructor finds the mu that gives the wanted mean after the cut.
class LengthSource {
 public:
  explicit LengthSource(const LengthDistribution& d);

  std::uint32_t Draw(SeededRandom& random) const;

 private:
  const LengthDistribution d_;
  double mu_ = 0;
};

}  // namespace flotilla
