// best_of: chooses which of several independent continuations are the answer.
//
// It follows OpenAI's rule and takes those with the highest log-probability per token.
// Pure. A generation uses it once all of its sequences have ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace flotilla::router {

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

// Indices of the `count` highest scores, best first; equal scores come in the order of their
// indices. NaN is the worst score. Returns at most as many indices as there are scores.
std::vector<std::uint32_t> BestOf(absl::Span<const double> scores, std::size_t count);

}  // namespace flotilla::router
