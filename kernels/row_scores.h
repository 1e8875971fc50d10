// What a row of logits is reduced to. Pure.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/scalar_math.h"

namespace flotilla::kernels {

// softmax_stats sums the logits of this many tokens together first. Each chunk begins at a
// multiple of this number.
inline constexpr int kVocabularyChunk = 1024;

struct TokenScore {
  int32_t token = 0;
  float score = 0;
};

// Max and sum of exponentials of (part of) a row of logits: sum e^(x - max).
struct SoftmaxStats {
  float max = 0;
  float sum = 0;
};

// Merges the statistics of two parts: m = max, sum = fma(a.sum, Exp(a.max - m), b.sum *
// Exp(b.max - m)). A part that is all -infinity changes nothing.
FLOTILLA_HOST_DEVICE inline SoftmaxStats MergeStats(const SoftmaxStats& a, const SoftmaxStats& b) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  if (b.max == kNone) return a;
  if (a.max == kNone) return b;
  const float max = a.max > b.max ? a.max : b.max;
  return {max, std::fma(a.sum, Exp(a.max - max), b.sum * Exp(b.max - max))};
}

// log(sum e^x). The log-probability of token i is logit[i] - LogSumExp(stats).
FLOTILLA_HOST_DEVICE inline float LogSumExp(const SoftmaxStats& stats) {
  return stats.max + Log(stats.sum);
}

}  // namespace flotilla::kernels
