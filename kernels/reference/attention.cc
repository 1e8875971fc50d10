// Paged KV cache and attention, one query head at a time.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kv_codec.h"
#include "kernels/reference/lanes.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/scalar_math.h"

namespace flotilla::kernels::reference {
namespace {

constexpr int kTileKeys = 64;
constexpr int kSegmentKeys = 256;
constexpr float kNone = -std::numeric_limits<float>::infinity();

std::byte* Record(const KvView& cache, int head, int position) {
  return cache.base + cache.block_table[position / kKvBlockTokens] * cache.block_stride +
         head * cache.head_stride;
}

// K or V of a record: where its elements and its scales lie.
struct Part {
  KvType type;
  int dim;
  std::byte* elements;
  std::byte* scales;

  int64_t index(int slot, int d) const {
    return is_value ? KvValueIndex(type, dim, slot, d) : KvKeyIndex(type, slot, d);
  }
  // Element d of the token.
  float At(int slot, int d) const {
    const std::byte* const at = scales_of(slot, d);
    KvScale scale;
    if (HasScales(type)) std::memcpy(&scale.d, at, sizeof scale.d);
    if (HasCodes(type)) std::memcpy(&scale.m, at + kKvBlockTokens * 2, sizeof scale.m);
    return KvDecode(type, elements, index(slot, d), scale);
  }
  // All elements of the token.
  void Set(int slot, const float* x) const {
    const int span = KvScaleSpan(type, dim);
    for (int begin = 0; begin < dim; begin += span) {
      const int end = begin + span < dim ? begin + span : dim;
      const KvScale scale = KvScaleOf(type, x + begin, end - begin);
      std::byte* const at = scales_of(slot, begin);
      if (HasScales(type)) std::memcpy(at, &scale.d, sizeof scale.d);
      if (HasCodes(type)) std::memcpy(at + kKvBlockTokens * 2, &scale.m, sizeof scale.m);
      for (int d = begin; d < end; ++d) KvEncode(type, x[d], scale, index(slot, d), elements);
    }
  }
  std::byte* scales_of(int slot, int d) const {
    return scales + d / KvScaleSpan(type, dim) * KvGroupScaleBytes(type) + slot * 2;
  }

  bool is_value = false;
};

Part KeysOf(const KvView& cache, std::byte* record) {
  return {cache.format.key, cache.dims.key, record,
          record + KvKeyScaleOffset(cache.format, cache.dims)};
}
Part ValuesOf(const KvView& cache, std::byte* record) {
  return {cache.format.value, cache.dims.value, record + KvValueOffset(cache.format, cache.dims),
          record + KvValueScaleOffset(cache.format, cache.dims), /*is_value=*/true};
}

// Softmax state: running max, sum of exponentials, output not yet divided.
struct State {
  float max = kNone;
  float sum = 0;
  float out[kMaxLatentDim] = {};
};

// The query token and head of a call, and the keys [first_key, keys) that it sees.
struct Query {
  const AttentionArgs& args;
  const float* scaled;  // [dim] q * scale
  int head;
  int first_key;
  int keys;
};

// The score of the key at `position`.
float Score(const Query& query, int position) {
  const AttentionArgs& args = query.args;
  const KvView& cache = args.cache;
  const Part keys = KeysOf(cache, Record(cache, args.kv_head, position));
  const int slot = position % kKvBlockTokens;
  float score = 0;
  for (int d = 0; d < cache.dims.key; ++d) {
    score = std::fma(query.scaled[d], keys.At(slot, d), score);
  }
  if (args.softcap != 0) score = args.softcap * Tanh(score / args.softcap);
  if (args.slopes == nullptr) return score;
  const int distance = position - (query.keys - 1);
  return std::fma(args.slopes[query.head], static_cast<float>(distance), score);
}

// Element d of V of the token in `slot` of the record.
float Value(const KvView& cache, std::byte* record, int slot, int d) {
  return (cache.dims.prefix ? KeysOf(cache, record) : ValuesOf(cache, record)).At(slot, d);
}

// Adds the tile of keys that begins at `begin`, of which the query sees at least one.
void AddTile(const Query& query, int begin, State* state) {
  const AttentionArgs& args = query.args;
  const KvView& cache = args.cache;
  const int first = query.first_key > begin ? query.first_key - begin : 0;
  const int count = query.keys - begin < kTileKeys ? query.keys - begin : kTileKeys;
  float scores[kTileKeys];
  for (int j = first; j < count; ++j) scores[j] = Score(query, begin + j);
  float max = state->max;
  for (int j = first; j < count; ++j) max = scores[j] > max ? scores[j] : max;
  if (max > state->max && state->max != kNone) {
    const float correction = Exp(state->max - max);
    state->sum *= correction;
    for (int d = 0; d < cache.dims.value; ++d) state->out[d] *= correction;
  }
  state->max = max;
  float p[kTileKeys] = {};
  for (int j = first; j < count; ++j) p[j] = Exp(scores[j] - max);
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = (p[i] + p[16 + i]) + (p[32 + i] + p[48 + i]);
  state->sum += LaneTree(lanes);
  for (int j = first; j < count; ++j) {
    std::byte* const record = Record(cache, args.kv_head, begin + j);
    const int slot = (begin + j) % kKvBlockTokens;
    for (int d = 0; d < cache.dims.value; ++d) {
      state->out[d] = std::fma(p[j], Value(cache, record, slot, d), state->out[d]);
    }
  }
}

// Merges a later segment into the earlier ones.
void Merge(const State& segment, int dim, State* total) {
  const float max = segment.max > total->max ? segment.max : total->max;
  const float a = Exp(total->max - max);
  const float b = Exp(segment.max - max);
  total->max = max;
  total->sum = std::fma(total->sum, a, segment.sum * b);
  for (int d = 0; d < dim; ++d) {
    total->out[d] = std::fma(total->out[d], a, segment.out[d] * b);
  }
}

// Attention of one head of the token that sees `keys` positions or the last of them.
void AttendHead(const AttentionArgs& args, int head, const float* q, int keys, float* out) {
  const int dim = args.cache.dims.key, value_dim = args.cache.dims.value;
  float scaled[kMaxLatentDim];
  for (int d = 0; d < dim; ++d) scaled[d] = q[d] * args.scale;
  const int first_key = args.window > 0 && keys > args.window ? keys - args.window : 0;
  const Query query{args, scaled, head, first_key, keys};
  State total;
  for (int begin = 0; begin < keys; begin += kSegmentKeys) {
    State segment;
    for (int tile = begin; tile < begin + kSegmentKeys && tile < keys; tile += kTileKeys) {
      if (tile + kTileKeys > first_key) AddTile(query, tile, &segment);
    }
    if (begin + kSegmentKeys <= first_key) continue;
    if (begin <= first_key) {
      total = segment;
    } else {
      Merge(segment, value_dim, &total);
    }
  }
  if (args.sinks != nullptr) {
    const float sink = args.sinks[head];
    const float max = sink > total.max ? sink : total.max;
    const float a = Exp(total.max - max);
    total.sum = std::fma(total.sum, a, Exp(sink - max));
    for (int d = 0; d < value_dim; ++d) total.out[d] *= a;
  }
  const float inverse = 1.0f / total.sum;
  for (int d = 0; d < args.out_dim; ++d) out[d] = total.out[d] * inverse;
}

}  // namespace

void KvWrite(const KvWriteArgs& args, int token_begin, int token_end) {
  const KvView& cache = args.cache;
  for (int token = token_begin; token < token_end; ++token) {
    const int position = args.first_position + token;
    const int slot = position % kKvBlockTokens;
    for (int head = 0; head < args.heads; ++head) {
      std::byte* const record = Record(cache, head, position);
      KeysOf(cache, record).Set(slot, args.k + token * args.token_stride + head * cache.dims.key);
      if (cache.dims.prefix) continue;
      const Part values = ValuesOf(cache, record);
      values.Set(slot, args.v + token * args.token_stride + head * cache.dims.value);
      if (values.type == KvType::kBf16 && slot % 2 == 0) {
        constexpr float kZeros[kMaxHeadDim] = {};
        values.Set(slot + 1, kZeros);
      }
    }
  }
}

void PagedAttention(const AttentionArgs& args, int token_begin, int token_end) {
  for (int token = token_begin; token < token_end; ++token) {
    for (int head = 0; head < args.heads; ++head) {
      AttendHead(args, head, args.q + token * args.q_stride + head * args.cache.dims.key,
                 args.first_position + token + 1,
                 args.out + token * args.out_stride + head * args.out_dim);
    }
  }
}

}  // namespace flotilla::kernels::reference
