// best_of: which of several independent continuations are the answer.
//
// OpenAI's rule: those with the highest log-probability per token. Pure; used by
// a generation once all of its sequences have ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace flotilla {

// Mean log-probability of the output tokens of one sequence, added in order.
class MeanLogprob {
 public:
  void Add(float logprob) {
    sum_ += logprob;
    ++tokens_;
  }
  std::uint32_t tokens() const { return tokens_; }
  // Minus infinity without tokens: any other sequence is better.
  double Get() const;

 private:
  double sum_ = 0;
  std::uint32_t tokens_ = 0;
};

// Indices of the `count` highest scores, best first; of equal ones the lower
// index first. NaN is worse than all else. At most as many as there are scores.
std::vector<std::uint32_t> BestOf(absl::Span<const double> scores, std::size_t count);

}  // namespace flotilla
