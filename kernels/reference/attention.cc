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

// What a block has of a KV head, and the record of a position in it.
std::byte* Head(const KvView& view, int head, int position) {
  return view.base +
         view.block_table[position / view.block_tokens - view.first_block] * view.block_stride +
         head * view.head_stride;
}
std::byte* Record(const KvView& view, int head, int position) {
  return Head(view, head, position) +
         position % view.block_tokens / kKvRecordTokens * KvRecordBytes(view.format, view.dims);
}

// K or V of a record: where its elements and its scales lie.
struct Part {
  KvType type;
  int dim;
  std::byte* elements;
  std::byte* scales;
  bool is_value;

  int64_t index(int slot, int d) const {
    return is_value ? KvValueIndex(type, dim, slot, d) : KvKeyIndex(type, slot, d);
  }
  // Element d of the token.
  float At(int slot, int d) const {
    const std::byte* const at = scale_of(slot, d);
    KvScale scale;
    if (HasScales(type)) std::memcpy(&scale.d, at, sizeof scale.d);
    if (HasCodes(type)) std::memcpy(&scale.m, at + to_minimum(), sizeof scale.m);
    return KvDecode(type, elements, index(slot, d), scale);
  }
  // All elements of the token, where it has scales of its own or `given` as in KvScaleOf.
  void Set(int slot, const float* x, float given = 0) const {
    const int span = KvScaleSpan(type, dim);
    for (int begin = 0; begin < dim; begin += span) {
      const int end = begin + span < dim ? begin + span : dim;
      const KvScale scale = KvScaleOf(type, x + begin, end - begin, given);
      SetScale(slot, begin, scale);
      for (int d = begin; d < end; ++d) KvEncode(type, x[d], scale, index(slot, d), elements);
    }
  }
  void SetScale(int slot, int d, const KvScale& scale) const {
    std::byte* const at = scale_of(slot, d);
    if (HasScales(type)) std::memcpy(at, &scale.d, sizeof scale.d);
    if (HasCodes(type)) std::memcpy(at + to_minimum(), &scale.m, sizeof scale.m);
  }

 private:
  bool is_by_element() const { return !is_value && HasRuns(type); }
  std::byte* scale_of(int slot, int d) const {
    if (is_by_element()) return scales + d * 2;
    return scales + d / KvScaleSpan(type, dim) * KvGroupScaleBytes(type) + slot * 2;
  }
  int to_minimum() const { return (is_by_element() ? dim : kKvRecordTokens) * 2; }
};

Part KeysOf(const KvView& view, int head, int position) {
  std::byte* const record = Record(view, head, position);
  std::byte* const scales =
      HasRuns(view.format.key)
          ? Head(view, head, position) + kKvRunRecords * KvRecordBytes(view.format, view.dims)
          : record + KvKeyScaleOffset(view.format, view.dims);
  return {view.format.key, view.dims.key, record, scales, /*is_value=*/false};
}
Part ValuesOf(const KvView& view, int head, int position) {
  std::byte* const record = Record(view, head, position);
  return {view.format.value, view.dims.value, record + KvValueOffset(view.format, view.dims),
          record + KvValueScaleOffset(view.format, view.dims), /*is_value=*/true};
}

// Element d of K and V of position 0, as open runs have them.
std::byte* FirstKeyAt(const KvView& open, int head) {
  return open.base + open.block_table[0] * open.block_stride + head * open.head_stride +
         KvFirstOffset(open.dims);
}
std::byte* FirstValueAt(const KvView& open, int head) {
  return FirstKeyAt(open, head) + KvBytes(KvType::kBf16, open.dims.key);
}
void StoreFirst(const float* x, int dim, std::byte* at) {
  for (int d = 0; d < dim; ++d) KvEncode(KvType::kBf16, x[d], {}, d, at);
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

// Where the query finds elements of this type of the key at `position`.
const KvView& ViewOf(const Query& query, KvType type, int position) {
  const bool is_open = HasRuns(type) && position / kKvRunTokens == (query.keys - 1) / kKvRunTokens;
  return is_open ? query.args.open : query.args.cache;
}
// Whether it sees position 0 apart from its run.
bool SeesFirstApart(const Query& query, KvType type, int position) {
  return HasRuns(type) && position == 0 && query.keys > kKvRunTokens;
}

// The score of the key at `position`.
float Score(const Query& query, int position) {
  const AttentionArgs& args = query.args;
  const KvView& cache = args.cache;
  const Part keys = KeysOf(ViewOf(query, cache.format.key, position), args.kv_head, position);
  const int slot = position % kKvRecordTokens;
  const bool apart = SeesFirstApart(query, cache.format.key, position);
  float score = 0;
  for (int d = 0; d < cache.dims.key; ++d) {
    const float key = apart ? KvDecode(KvType::kBf16, FirstKeyAt(args.open, args.kv_head), d, {})
                            : keys.At(slot, d);
    score = std::fma(query.scaled[d], key, score);
  }
  if (args.softcap != 0) score = args.softcap * Tanh(score / args.softcap);
  if (args.slopes == nullptr) return score;
  const int distance = position - (query.keys - 1);
  return std::fma(args.slopes[query.head], static_cast<float>(distance), score);
}

// V of the key at `position`.
Part Values(const Query& query, int position) {
  const AttentionArgs& args = query.args;
  if (args.cache.dims.prefix) return KeysOf(args.cache, args.kv_head, position);
  return ValuesOf(ViewOf(query, args.cache.format.value, position), args.kv_head, position);
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
    const Part values = Values(query, begin + j);
    const int slot = (begin + j) % kKvRecordTokens;
    const bool apart = SeesFirstApart(query, cache.format.value, begin + j);
    for (int d = 0; d < cache.dims.value; ++d) {
      const float value =
          apart ? KvDecode(KvType::kBf16, FirstValueAt(args.open, args.kv_head), d, {})
                : values.At(slot, d);
      state->out[d] = std::fma(p[j], value, state->out[d]);
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
  const KvFormat& format = args.cache.format;
  const KvDims& dims = args.cache.dims;
  for (int token = token_begin; token < token_end; ++token) {
    const int position = args.first_position + token;
    const int slot = position % kKvRecordTokens;
    for (int head = 0; head < args.heads; ++head) {
      const float* const k = args.k + token * args.token_stride + head * dims.key;
      KeysOf(HasRuns(format.key) ? args.open : args.cache, head, position)
          .Set(slot, k, args.key_scale);
      if (HasRuns(format.key) && position == 0) {
        StoreFirst(k, dims.key, FirstKeyAt(args.open, head));
      }
      if (dims.prefix) continue;
      const float* const v = args.v + token * args.token_stride + head * dims.value;
      if (HasRuns(format.value) && position == 0) {
        StoreFirst(v, dims.value, FirstValueAt(args.open, head));
      }
      const Part values = ValuesOf(HasRuns(format.value) ? args.open : args.cache, head, position);
      values.Set(slot, v, args.value_scale);
      if (values.type == KvType::kBf16 && slot % 2 == 0) {
        constexpr float kZeros[kMaxHeadDim] = {};
        values.Set(slot + 1, kZeros);
      }
    }
  }
}

void KvSeal(const KvSealArgs& args, int head_begin, int head_end) {
  const KvDims& dims = args.cache.dims;
  const int begin = args.run * kKvRunTokens;
  for (int head = head_begin; head < head_end; ++head) {
    // K of an element has one scale for all tokens.
    for (int d = 0; HasRuns(args.cache.format.key) && d < dims.key; ++d) {
      float tokens[kKvRunTokens];
      for (int i = 0; i < kKvRunTokens; ++i) {
        tokens[i] = KeysOf(args.open, head, begin + i).At(i % kKvRecordTokens, d);
      }
      if (args.run == 0) tokens[0] = tokens[1];
      const KvScale scale = KvScaleOf(args.cache.format.key, tokens, kKvRunTokens);
      KeysOf(args.cache, head, begin).SetScale(0, d, scale);
      for (int i = 0; i < kKvRunTokens; ++i) {
        const Part keys = KeysOf(args.cache, head, begin + i);
        KvEncode(keys.type, tokens[i], scale, keys.index(i % kKvRecordTokens, d), keys.elements);
      }
    }
    for (int i = 0; HasRuns(args.cache.format.value) && i < kKvRunTokens; ++i) {
      const Part open = ValuesOf(args.open, head, begin + i);
      float token[kMaxHeadDim];
      for (int d = 0; d < dims.value; ++d) token[d] = open.At(i % kKvRecordTokens, d);
      ValuesOf(args.cache, head, begin + i).Set(i % kKvRecordTokens, token);
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
