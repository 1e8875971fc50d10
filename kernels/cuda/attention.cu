// paged_attention. A block of threads has a segment of a row and a KV head, with all query heads of
// it, and writes the state of the softmax: the output that is not yet divided, then max and sum.
// A second kernel merges the segments of each row and query head in ascending order.
#include <cmath>
#include <limits>

#include "kernels/cuda/kv_cache.h"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/reduce.h"

namespace flotilla::kernels::cuda::FLOTILLA_SIMT {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTileKeys = 64;
constexpr float kNone = -std::numeric_limits<float>::infinity();

constexpr int kKeySets = kThreads / kTileKeys;  // of threads that have the same keys
constexpr int kHeadsOfThread = kMaxGroup / kKeySets;

// Of heads of up to kDim elements.
template <class Kv, int kDim>
struct SegmentShared {
  const typename Kv::Number* keys[kTileKeys];
  float q[kMaxGroup][kDim];            // scaled
  float out[kMaxGroup][kDim];          // of the keys so far
  float scores[kMaxGroup][kTileKeys];  // then the exponentials
  float max[kMaxGroup];
  float sum[kMaxGroup];
  float correction[kMaxGroup];  // of sum and out, before the tile
};

// The scores of a tile. A thread has one key, and every second head.
template <class Kv, class Share>
FLOTILLA_DEVICE void ScoreTile(Share& shared, int dim, int group, int count) {
  const int key = Thread() % kTileKeys, first = Thread() / kTileKeys;
  if (key >= count) return;
  const auto* const k = shared.keys[key];
  float scores[kHeadsOfThread] = {};
  for (int begin = 0; begin < dim; begin += 8) {
    float numbers[8];
    Kv::LoadEight(k + begin, numbers);
    FLOTILLA_UNROLL
    for (int i = 0; i < kHeadsOfThread; ++i) {
      const int head = first + i * kKeySets;
      if (head >= group) break;
      FLOTILLA_UNROLL
      for (int d = 0; d < 8; ++d) {
        scores[i] = std::fma(shared.q[head][begin + d], numbers[d], scores[i]);
      }
    }
  }
  FLOTILLA_UNROLL
  for (int i = 0; i < kHeadsOfThread; ++i) {
    const int head = first + i * kKeySets;
    if (head < group) shared.scores[head][key] = scores[i];
  }
}

// Max, exponentials and sum of a tile, with a warp for each head.
template <class Share>
FLOTILLA_DEVICE void WeighTile(Share& shared, int group, int count) {
  const int lane = LaneOf(Thread());
  for (int head = WarpOf(Thread()); head < group; head += kWarps) {
    const float before = shared.max[head];
    float max = before;
    for (int key = lane; key < count; key += kWarp) {
      max = shared.scores[head][key] > max ? shared.scores[head][key] : max;
    }
    for (int mask = kWarp / 2; mask >= 1; mask /= 2) {
      const float other = ShuffleXor(max, mask);
      max = other > max ? other : max;
    }
    float p[kTileKeys / kWarp];
    for (int h = 0; h < kTileKeys / kWarp; ++h) {
      const int key = h * kWarp + lane;
      p[h] = key < count ? Exp(shared.scores[head][key] - max) : 0;
      shared.scores[head][key] = p[h];
    }
    for (float& half : p) half += ShuffleDown(half, kWarp / 2);
    const float sum = LaneTree<kWarp / 2>(p[0] + p[1]);
    SyncWarp();  // all lanes have read the maximum
    if (lane == 0) {
      const bool corrected = max > before && before != kNone;
      const float correction = corrected ? Exp(before - max) : 1;
      shared.correction[head] = correction;
      shared.max[head] = max;
      const float old = corrected ? shared.sum[head] * correction : shared.sum[head];
      shared.sum[head] = old + sum;
    }
  }
}

// Adds V of a tile. A thread has two elements of a head at a time.
template <class Kv, class Share>
FLOTILLA_DEVICE void AddTile(Share& shared, int dim, int group, int count) {
  const int pairs = dim / 2;
  for (int i = Thread(); i < group * pairs; i += kThreads) {
    const int head = i / pairs, d = i % pairs * 2;
    float out[2];
    for (int j = 0; j < 2; ++j) out[j] = shared.out[head][d + j] * shared.correction[head];
    FLOTILLA_UNROLL_BY(8)
    for (int key = 0; key < count; ++key) {
      float v[2];
      Kv::LoadTwo(shared.keys[key] + kKvRecordTokens * dim + d, v);
      const float p = shared.scores[head][key];
      for (int j = 0; j < 2; ++j) out[j] = std::fma(p, v[j], out[j]);
    }
    for (int j = 0; j < 2; ++j) shared.out[head][d + j] = out[j];
  }
}

template <class Kv, int kDim>
FLOTILLA_KERNEL(kThreads)
SegmentKernel(const AttentionArgs args) {
  using Share = SegmentShared<Kv, kDim>;
  Share& shared = Shared<Share>();
  const int item = args.first_segment + BlockX(), kv_head = BlockY();
  const int dim = args.cache.dim, group = args.group;
  const int row = args.segment_rows[item], sequence = args.sequences[row];
  const int begin = (item - args.first_segments[row]) * kSegmentKeys;
  const int keys = args.positions[row] + 1;  // that the row sees

  const float* const q = args.q + row * args.q_stride + int64_t{kv_head} * group * dim;
  for (int i = Thread(); i < group * dim; i += kThreads) {
    shared.q[i / dim][i % dim] = q[i] * args.scale;
    shared.out[i / dim][i % dim] = 0;
  }
  for (int head = Thread(); head < group; head += kThreads) {
    shared.max[head] = kNone;
    shared.sum[head] = 0;
  }

  for (int tile = begin; tile < begin + kSegmentKeys && tile < keys; tile += kTileKeys) {
    const int count = keys - tile < kTileKeys ? keys - tile : kTileKeys;
    if (Thread() < count) {
      shared.keys[Thread()] = KeyOf<Kv>(args.cache, sequence, kv_head, tile + Thread());
    }
    SyncThreads();
    ScoreTile<Kv>(shared, dim, group, count);
    SyncThreads();
    WeighTile(shared, group, count);
    SyncThreads();
    AddTile<Kv>(shared, dim, group, count);
    SyncThreads();
  }

  const int64_t first = (int64_t{BlockX()} * args.kv_heads + kv_head) * group * (dim + 2);
  float* const state = args.scratch + first;
  for (int i = Thread(); i < group * dim; i += kThreads) {
    state[i / dim * (dim + 2) + i % dim] = shared.out[i / dim][i % dim];
  }
  for (int head = Thread(); head < group; head += kThreads) {
    state[head * (dim + 2) + dim] = shared.max[head];
    state[head * (dim + 2) + dim + 1] = shared.sum[head];
  }
}

constexpr int kMergeThreads = 64;

// A block of threads for a row and a query head; each thread merges elements of it.
FLOTILLA_KERNEL(kMergeThreads)
MergeKernel(const AttentionArgs args) {
  const int row = args.first_row + BlockX(), head = BlockY(), dim = args.cache.dim;
  const int heads = args.kv_heads * args.group;
  const int begin = args.first_segments[row] - args.first_segment;
  const int end = args.first_segments[row + 1] - args.first_segment;
  for (int d = Thread(); d < args.out_dim; d += kMergeThreads) {
    float max = 0, sum = 0, out = 0;
    for (int item = begin; item < end; ++item) {
      const float* const state = args.scratch + (int64_t{item} * heads + head) * (dim + 2);
      if (item == begin) {
        out = state[d];
        max = state[dim];
        sum = state[dim + 1];
        continue;
      }
      const float merged = state[dim] > max ? state[dim] : max;
      const float a = Exp(max - merged), b = Exp(state[dim] - merged);
      max = merged;
      sum = std::fma(sum, a, state[dim + 1] * b);
      out = std::fma(out, a, state[d] * b);
    }
    args.out[row * args.out_stride + args.head_places[head] + d] = out * (1.0f / sum);
  }
}

template <class Kv, int kDim>
int LaunchSegments(const AttentionArgs& args, Stream stream) {
  return Launch<SegmentKernel<Kv, kDim>, kThreads, SegmentShared<Kv, kDim>>(
      "paged_attention", {.x = args.segments, .y = args.kv_heads}, args, stream);
}

}  // namespace

int PagedAttention(const AttentionArgs& args, Stream stream) {
  const int status = VisitKv(args.cache.type, [&]<class Kv>() {
    if (args.cache.dim <= 64) return LaunchSegments<Kv, 64>(args, stream);
    if (args.cache.dim <= 128) return LaunchSegments<Kv, 128>(args, stream);
    return LaunchSegments<Kv, kMaxHeadDim>(args, stream);
  });
  if (status != 0) return status;
  return Launch<MergeKernel, kMergeThreads, NothingShared>(
      "merge_attention", {.x = args.rows, .y = args.kv_heads * args.group}, args, stream);
}

}  // namespace flotilla::kernels::cuda::FLOTILLA_SIMT
