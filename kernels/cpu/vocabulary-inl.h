// Passes over a row of logits; each reads the row once (twice from L1).
#pragma once

#include "kernels/cpu/elementwise-inl.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops.h"

namespace flotilla::kernels {

// Loads 16 logits from p, with -infinity past the first n.
template <class S>
FLOTILLA_INLINE typename S::F LoadLogits(const float* p, int n) {
  if (n == 16) return S::Load(p);
  return S::Select(S::FirstN(n), S::LoadN(p, n), S::Set1(-__builtin_inff()));
}

// Returns the place with the largest score, the first one among equals. `score` takes a vector of
// logits and their places, and gives -infinity for places that are left out.
template <class S, class Score>
FLOTILLA_INLINE TokenScore FirstLargest(const float* logits, int n, Score score) {
  auto best = S::Set1(-__builtin_inff());
  auto best_id = S::IZero();
  ForVectors(n, [&](int64_t i, int count) FLOTILLA_INLINE_LAMBDA {
    const auto ids = S::IAdd(S::Iota(), S::ISet1(static_cast<int32_t>(i)));
    const auto value = score(LoadLogits<S>(logits + i, count), ids);
    const auto better = S::Gt(value, best);
    best = S::Select(better, value, best);
    best_id = S::ISelect(better, ids, best_id);
  });
  float scores[16];
  int32_t ids[16];
  S::Store(scores, best);
  S::IStore(ids, best_id);
  TokenScore winner{ids[0], scores[0]};
  for (int i = 1; i < 16; ++i) {
    const bool tie = scores[i] == winner.score && ids[i] < winner.token;
    if (scores[i] > winner.score || tie) winner = {ids[i], scores[i]};
  }
  return winner;
}

// Finds the maximum first, then its first place. Two short passes are faster than one pass that
// carries the index, because the index needs a chain of compares and selects.
template <class S>
TokenScore ArgMax(const float* logits, int n) {
  constexpr int kChains = 4;
  const auto none = S::Set1(-__builtin_inff());
  typename S::F largest[kChains] = {none, none, none, none};
  int i = 0;
  for (; i + 16 * kChains <= n; i += 16 * kChains) {
    FLOTILLA_UNROLL
    for (int c = 0; c < kChains; ++c) {
      largest[c] = S::Max(S::Load(logits + i + 16 * c), largest[c]);  // passes a NaN over
    }
  }
  ForVectors(n - i, [&](int64_t at, int count) FLOTILLA_INLINE_LAMBDA {
    largest[0] = S::Max(LoadLogits<S>(logits + i + at, count), largest[0]);
  });
  const float max =
      S::MaxLane(S::Max(S::Max(largest[0], largest[1]), S::Max(largest[2], largest[3])));
  if (max == -__builtin_inff()) return {0, max};
  for (i = 0;; i += 16) {
    const auto x = LoadLogits<S>(logits + i, n - i < 16 ? n - i : 16);
    const uint32_t hits = S::Bitmap(S::Eq(x, S::Set1(max)));
    if (hits == 0) continue;
    const int token = i + __builtin_ctz(hits);
    return {token, logits[token]};
  }
}

template <class S>
TokenScore GumbelArgMax(const float* logits, int n, const GumbelArgs& args) {
  const auto cutoff = S::Set1(args.cutoff.score);
  const auto last = S::ISet1(args.cutoff.token);
  const auto temperature = S::Set1(args.inverse_temperature);
  const auto none = S::Set1(-__builtin_inff());
  const auto first = S::ISet1(args.first_token);
  const auto score = [&](typename S::F x, typename S::I places) FLOTILLA_INLINE_LAMBDA {
    const auto ids = S::IAdd(places, first);
    const auto above = S::Gt(x, cutoff);
    const auto tied = S::And(S::Eq(x, cutoff), S::Not(S::IGt(ids, last)));
    const auto value = S::Fma(x, temperature, VGumbelNoise<S>(args.key, ids));
    return S::Select(S::Or(above, tied), value, none);
  };
  const TokenScore winner = FirstLargest<S>(logits, n, score);
  return {winner.token + args.first_token, winner.score};
}

// After the first few vectors a logit rarely beats the smallest kept score, so the common case is
// one compare per 16 logits.
template <class S>
void TopN(const float* logits, int n, int count, TokenScore* out) {
  for (int i = 0; i < count; ++i) out[i] = {0, -__builtin_inff()};
  ForVectors(n, [&](int64_t i, int lanes) FLOTILLA_INLINE_LAMBDA {
    const auto x = LoadLogits<S>(logits + i, lanes);
    uint32_t hits = S::Bitmap(S::Gt(x, S::Set1(out[count - 1].score)));
    for (; hits != 0; hits &= hits - 1) {
      const int id = static_cast<int>(i) + __builtin_ctz(hits);
      const float score = logits[id];
      if (!(score > out[count - 1].score)) continue;
      int place = count - 1;
      for (; place > 0 && score > out[place - 1].score; --place) out[place] = out[place - 1];
      out[place] = {id, score};
    }
  });
}

template <class S>
FLOTILLA_INLINE SoftmaxStats ChunkStats(const float* logits, int n) {
  auto lanes = S::Set1(-__builtin_inff());
  // In this operand order a NaN is passed over.
  ForVectors(n, [&](int64_t i, int count) FLOTILLA_INLINE_LAMBDA {
    lanes = S::Max(LoadLogits<S>(logits + i, count), lanes);
  });
  const float max = S::MaxLane(lanes);
  if (max == -__builtin_inff()) return {max, 0.0f};
  auto sum = S::Zero();
  ForVectors(n, [&](int64_t i, int count) FLOTILLA_INLINE_LAMBDA {
    sum = S::Add(sum, VExp<S>(S::Sub(LoadLogits<S>(logits + i, count), S::Set1(max))));
  });
  return {max, S::LaneTree(sum)};
}

template <class S>
SoftmaxStats ComputeSoftmaxStats(const float* logits, int n) {
  // A binary counter of subtrees: level i holds 2^i chunks, as in SplitTree.
  SoftmaxStats levels[32];
  int chunks = 0;
  for (int begin = 0; begin < n; begin += kVocabularyChunk, ++chunks) {
    const int count = n - begin < kVocabularyChunk ? n - begin : kVocabularyChunk;
    SoftmaxStats stats = ChunkStats<S>(logits + begin, count);
    int level = 0;
    for (; chunks >> level & 1; ++level) stats = MergeStats(levels[level], stats);
    levels[level] = stats;
  }
  SoftmaxStats total{-__builtin_inff(), 0.0f};
  for (int level = 0; level < 32; ++level) {
    if (chunks >> level & 1) total = MergeStats(levels[level], total);
  }
  return total;
}

}  // namespace flotilla::kernels
