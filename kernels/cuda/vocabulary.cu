// Passes over logits: a block of threads for each row.
#include <cmath>
#include <limits>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/reduce.h"
#include "kernels/noise.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {
namespace {

constexpr int kThreads = 256;
constexpr float kNone = -std::numeric_limits<float>::infinity();

using BestShared = PerWarp<TokenScore, kThreads>;

FLOTILLA_DEVICE const float* RowOf(const LogitRows& in) { return in.logits + BlockX() * in.stride; }

FLOTILLA_KERNEL(kThreads)
ArgMaxKernel(const ArgMaxArgs args) {
  const float* const logits = RowOf(args.in);
  TokenScore best{0, kNone};
  for (int i = Thread(); i < args.in.n; i += kThreads) {
    if (logits[i] > best.score) best = {i, logits[i]};
  }
  best = BestOfBlock<kThreads>(best, Shared<BestShared>());
  if (Thread() == 0) args.out[BlockX()] = best;
}

// Takes the best of those behind the one that was taken last, `count` times.
FLOTILLA_KERNEL(kThreads)
TopNKernel(const TopNArgs args) {
  const float* const logits = RowOf(args.in);
  TokenScore last{-1, std::numeric_limits<float>::infinity()};
  for (int place = 0; place < args.count; ++place) {
    TokenScore best{0, kNone};
    for (int i = Thread(); i < args.in.n; i += kThreads) {
      const TokenScore own{i, logits[i]};
      if (own.score > best.score && IsBetter(last, own)) best = own;
    }
    best = BestOfBlock<kThreads>(best, Shared<BestShared>());
    if (Thread() == 0) args.out[BlockX() * args.count + place] = best;
    last = best;
  }
}

FLOTILLA_KERNEL(kThreads)
GumbelKernel(const GumbelArgMaxArgs args) {
  const float* const logits = RowOf(args.in);
  const Gumbel draw = args.draws[BlockX()];
  TokenScore best{draw.first_token, kNone};
  for (int i = Thread(); i < args.in.n; i += kThreads) {
    const int32_t token = draw.first_token + i;
    const bool kept = logits[i] > draw.cutoff.score ||
                      (logits[i] == draw.cutoff.score && token <= draw.cutoff.token);
    if (!kept) continue;
    const float score = std::fma(logits[i], draw.inverse_temperature, GumbelNoise(draw.key, token));
    if (score > best.score) best = {token, score};
  }
  best = BestOfBlock<kThreads>(best, Shared<BestShared>());
  if (Thread() == 0) args.out[BlockX()] = best;
}

constexpr int kRowsOfBlock = 32;

// A thread for each row.
FLOTILLA_KERNEL(kRowsOfBlock)
LogitsOfKernel(const LogitsOfArgs args) {
  const int row = BlockX() * kRowsOfBlock + Thread();
  if (row >= args.in.rows) return;
  const int32_t token = args.tokens[row * args.token_stride] - args.first_token;
  args.out[row] = args.in.logits[row * args.in.stride + token];
}

struct StatsShared {
  SoftmaxStats chunks[kMostLogits / kVocabularyChunk];
};

// Half a warp has a chunk: its threads are the 16 lanes of the sum. The first thread merges chunks.
FLOTILLA_KERNEL(kThreads)
StatsKernel(const SoftmaxStatsArgs args) {
  constexpr int kLanes = 16;
  StatsShared& shared = Shared<StatsShared>();
  const float* const logits = RowOf(args.in);
  const int n = args.in.n, lane = Thread() % kLanes;
  const int chunks = (n + kVocabularyChunk - 1) / kVocabularyChunk;
  // All lanes of a warp go through the loop equally often.
  for (int first = 0; first < chunks; first += kThreads / kLanes) {
    const int chunk = first + Thread() / kLanes;
    const int begin = chunk * kVocabularyChunk;
    const int end = begin + kVocabularyChunk < n ? begin + kVocabularyChunk : n;
    // Of equal numbers the first one: zeros have signs.
    TokenScore best{0, kNone};
    for (int i = begin + lane; i < end; i += kLanes) {
      if (logits[i] > best.score) best = {i, logits[i]};
    }
    for (int mask = kLanes / 2; mask >= 1; mask /= 2) {
      const int32_t token = ShuffleXor(best.token, mask);
      const float score = ShuffleXor(best.score, mask);
      if (IsBetter({token, score}, best)) best = {token, score};
    }
    float sum = 0;
    if (best.score != kNone) {
      for (int i = begin + lane; i < end; i += kLanes) sum += Exp(logits[i] - best.score);
    }
    sum = LaneTree<kLanes>(sum);
    if (lane == 0 && chunk < chunks) shared.chunks[chunk] = {best.score, sum};
  }
  SyncThreads();
  if (Thread() != 0) return;
  // As the reference: the subtrees of a binary counter, here each level in place.
  for (int stride = 1; stride < chunks; stride *= 2) {
    for (int i = 0; i + stride < chunks; i += 2 * stride) {
      shared.chunks[i] = MergeStats(shared.chunks[i], shared.chunks[i + stride]);
    }
  }
  args.out[BlockX()] = shared.chunks[0];
}

}  // namespace

int ArgMax(const ArgMaxArgs& args, Stream stream) {
  return Launch<ArgMaxKernel, kThreads, BestShared>("argmax", {.x = args.in.rows}, args, stream);
}

int TopN(const TopNArgs& args, Stream stream) {
  return Launch<TopNKernel, kThreads, BestShared>("top_n", {.x = args.in.rows}, args, stream);
}

int GumbelArgMax(const GumbelArgMaxArgs& args, Stream stream) {
  return Launch<GumbelKernel, kThreads, BestShared>("gumbel_argmax", {.x = args.in.rows}, args,
                                                    stream);
}

int ComputeSoftmaxStats(const SoftmaxStatsArgs& args, Stream stream) {
  return Launch<StatsKernel, kThreads, StatsShared>("softmax_stats", {.x = args.in.rows}, args,
                                                    stream);
}

int LogitsOf(const LogitsOfArgs& args, Stream stream) {
  const Grid grid{.x = (args.in.rows + kRowsOfBlock - 1) / kRowsOfBlock};
  return Launch<LogitsOfKernel, kRowsOfBlock, NothingShared>("logits_of", grid, args, stream);
}

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
