// Passes over a row of logits.
#include <cmath>
#include <limits>

#include "kernels/reference/lanes.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels::reference {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

SoftmaxStats ChunkStats(const float* logits, int n) {
  SoftmaxStats stats{kNone, 0};
  for (int i = 0; i < n; ++i) stats.max = logits[i] > stats.max ? logits[i] : stats.max;
  if (stats.max == kNone) return stats;
  float lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i % 16] += Exp(logits[i] - stats.max);
  stats.sum = LaneTree(lanes);
  return stats;
}

}  // namespace

TokenScore ArgMax(const float* logits, int n) {
  TokenScore best{0, kNone};
  for (int i = 0; i < n; ++i) {
    if (logits[i] > best.score) best = {i, logits[i]};
  }
  return best;
}

void TopN(const float* logits, int n, int count, TokenScore* out) {
  for (int i = 0; i < count; ++i) out[i] = {0, kNone};
  for (int i = 0; i < n; ++i) {
    if (!(logits[i] > out[count - 1].score)) continue;
    int place = count - 1;
    for (; place > 0 && logits[i] > out[place - 1].score; --place) out[place] = out[place - 1];
    out[place] = {i, logits[i]};
  }
}

TokenScore GumbelArgMax(const float* logits, int n, const GumbelArgs& args) {
  TokenScore best{args.first_token, kNone};
  for (int i = 0; i < n; ++i) {
    const int32_t token = args.first_token + i;
    const bool kept = logits[i] > args.cutoff.score ||
                      (logits[i] == args.cutoff.score && token <= args.cutoff.token);
    if (!kept) continue;
    const float score = std::fma(logits[i], args.inverse_temperature, GumbelNoise(args.key, token));
    if (score > best.score) best = {token, score};
  }
  return best;
}

SoftmaxStats ComputeSoftmaxStats(const float* logits, int n) {
  // A binary counter of subtrees: level i holds 2^i chunks, like the split tree.
  SoftmaxStats levels[32];
  int chunks = 0;
  for (int begin = 0; begin < n; begin += kVocabularyChunk, ++chunks) {
    SoftmaxStats stats =
        ChunkStats(logits + begin, n - begin < kVocabularyChunk ? n - begin : kVocabularyChunk);
    int level = 0;
    for (; chunks >> level & 1; ++level) stats = MergeStats(levels[level], stats);
    levels[level] = stats;
  }
  SoftmaxStats total{kNone, 0};
  for (int level = 0; level < 32; ++level) {
    if (chunks >> level & 1) total = MergeStats(levels[level], total);
  }
  return total;
}

}  // namespace flotilla::kernels::reference
