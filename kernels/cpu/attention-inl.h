// Paged attention with online softmax. Rows are the (token, head) pairs that share
// a KV head; up to S::kAttentionRows of them walk the keys together, so each load
// of K and V serves several rows. A row's arithmetic never depends on the others:
// per-row key counts mask scores before use and bound the sums over V.
#pragma once

#include "kernels/cpu/kv_write-inl.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops.h"

namespace flotilla::kernels {

inline constexpr int kTileKeys = 64;
inline constexpr int kSegmentKeys = 256;
inline constexpr int kTileBlocks = kTileKeys / kKvRecordTokens;
static_assert(kTileKeys == kKvRunTokens, "a tile is a run");

// The state of N rows of at most kDim elements. o is not yet divided by sum.
template <int N, int kDim>
struct AttentionRows {
  // Whether V is a prefix of K; other models have rows that are not as long.
  static constexpr bool kPrefix = kDim == kMaxLatentDim;

  int first[N];       // the first key that the row sees; ascending
  int keys[N];        // the end of the keys that the row sees; ascending
  int tile_first[N];  // those two inside the current tile
  int tile_keys[N];
  float slope[N];
  bool begun[N];  // whether the totals have a segment
  float* out[N];
  float max[N];
  float sum[N];
  float total_max[N];
  float total_sum[N];
  alignas(64) float q[N][kDim];
  alignas(64) float p[N][kTileKeys];
  alignas(64) float o[N][kDim];
  alignas(64) float total[N][kDim];
};

// d and m of tokens of one block in fp32, as loads multiply them: d of FP8 is 256 times the scale.
template <class S, KvType kType>
FLOTILLA_INLINE typename S::F ScaleVector(const std::byte* scales) {
  if constexpr (HasCodes(kType)) return S::LoadBf16(scales);
  return S::Mul(S::LoadBf16(scales), S::Set1(256));
}

// 16 elements that follow each other, with the scales of their tokens.
template <class S, KvType kType>
FLOTILLA_INLINE typename S::F LoadElements(const std::byte* at, typename S::F d, typename S::F m) {
  if constexpr (kType == KvType::kF32) {
    return S::Load(reinterpret_cast<const float*>(at));
  } else if constexpr (kType == KvType::kF16) {
    return S::LoadHalf(at);
  } else if constexpr (kType == KvType::kInt8) {
    return S::Fma(d, S::LoadUint8(at), m);
  } else if constexpr (HasCodes(kType)) {
    return S::Fma(d, S::template LoadCodes<KvElementBits(kType)>(at), m);
  } else if constexpr (kType == KvType::kFp8E5m2) {
    return S::LoadE5m2(at);
  } else {
    return S::Mul(d, S::LoadFp8(at));
  }
}

// Where the scales of K are: of a token `offset` bytes behind the begin of its record, and of an
// element of K that is kept by runs in `by_element`, d [dim] and m [dim].
struct KeyScales {
  int64_t offset;
  const float* by_element;
};

// Scores of V blocks of 16 keys for N rows: p[r][16 v ...] = q[r] . K.
template <class S, KvType kType, int N, int V, int kDim>
FLOTILLA_INLINE void BlockScores(const std::byte* const* blocks, int dim, const KeyScales& scales,
                                 AttentionRows<N, kDim>* rows, int first) {
  using F = typename S::F;
  F score[N * V];
  FLOTILLA_UNROLL
  for (int i = 0; i < N * V; ++i) score[i] = S::Zero();
  const auto step = [&](const F(&key)[V], int d) FLOTILLA_INLINE_LAMBDA {
    FLOTILLA_UNROLL
    for (int r = 0; r < N; ++r) {
      const F q = S::Set1(rows->q[r][d]);
      FLOTILLA_UNROLL
      for (int v = 0; v < V; ++v) score[r * V + v] = S::Fma(q, key[v], score[r * V + v]);
    }
  };
  F key[V];
  if constexpr (kType == KvType::kBf16) {
    for (int d = 0; d < dim; d += 2) {
      FLOTILLA_UNROLL
      for (int v = 0; v < V; ++v) key[v] = EvenHalf<S>(S::ILoad(blocks[v] + d * 32));
      step(key, d);
      FLOTILLA_UNROLL
      for (int v = 0; v < V; ++v) key[v] = OddHalf<S>(S::ILoad(blocks[v] + d * 32));
      step(key, d + 1);
    }
  } else if constexpr (HasRuns(kType)) {
    for (int d = 0; d < dim; ++d) {
      const F scale = S::Set1(scales.by_element[d]), minimum = S::Set1(scales.by_element[dim + d]);
      FLOTILLA_UNROLL
      for (int v = 0; v < V; ++v) {
        const std::byte* at = blocks[v] + KvBytes(kType, d * kKvRecordTokens);
        key[v] = LoadElements<S, kType>(at, scale, minimum);
      }
      step(key, d);
    }
  } else {
    F scale[V], minimum[V];
    FLOTILLA_UNROLL
    for (int v = 0; v < V; ++v) {
      const std::byte* at = blocks[v] + scales.offset;
      scale[v] = minimum[v] = S::Zero();
      if constexpr (HasScales(kType)) scale[v] = ScaleVector<S, kType>(at);
      if constexpr (HasCodes(kType)) minimum[v] = S::LoadBf16(at + 32);
    }
    for (int d = 0; d < dim; ++d) {
      FLOTILLA_UNROLL
      for (int v = 0; v < V; ++v) {
        const std::byte* at = blocks[v] + KvBytes(kType, d * kKvRecordTokens);
        key[v] = LoadElements<S, kType>(at, scale[v], minimum[v]);
      }
      step(key, d);
    }
  }
  FLOTILLA_UNROLL
  for (int r = 0; r < N; ++r) {
    FLOTILLA_UNROLL
    for (int v = 0; v < V; ++v) S::Store(rows->p[r] + first + v * 16, score[r * V + v]);
  }
}

// Applies softcap and slope to one row's scores of the tile at `begin`.
template <class S, int N, int kDim>
FLOTILLA_INLINE void AdjustScores(const AttentionArgs& args, int begin,
                                  AttentionRows<N, kDim>* rows, int r) {
  using F = typename S::F;
  const F cap = S::Set1(args.softcap), slope = S::Set1(rows->slope[r]);
  for (int key = 0; key < rows->tile_keys[r]; key += 16) {
    F score = S::Load(rows->p[r] + key);
    if (args.softcap != 0) score = S::Mul(cap, VTanh<S>(S::Div(score, cap)));
    if (args.slopes != nullptr) {
      const auto distance = S::IAdd(S::Iota(), S::ISet1(begin + key - (rows->keys[r] - 1)));
      score = S::Fma(slope, S::ToFloat(distance), score);
    }
    S::Store(rows->p[r] + key, score);
  }
}

// The lanes of block `b` of the tile that the row sees, if it does not see all of them.
template <class S>
FLOTILLA_INLINE typename S::M SeenLanes(int first, int end, int b) {
  const auto lane = S::IAdd(S::Iota(), S::ISet1(b * 16));
  return S::And(S::IGt(S::ISet1(end), lane), S::IGt(lane, S::ISet1(first - 1)));
}

// Turns one row's scores into probabilities and rescales the row's output and sum so far.
template <class S, int N, int kDim>
FLOTILLA_INLINE void SoftmaxTile(AttentionRows<N, kDim>* rows, int r, int dim) {
  using F = typename S::F;
  const float kNone = -__builtin_inff();
  const int first = rows->tile_first[r], count = rows->tile_keys[r];
  const auto sees_any = [&](int b) { return b * 16 < count && b * 16 + 16 > first; };
  const auto sees_all = [&](int b) { return b * 16 + 16 <= count && b * 16 >= first; };
  float* p = rows->p[r];
  F score[kTileBlocks];
  F max = S::Set1(kNone);
  FLOTILLA_UNROLL
  for (int b = 0; b < kTileBlocks; ++b) {
    score[b] = S::Set1(kNone);
    if (sees_all(b)) {
      score[b] = S::Load(p + b * 16);
    } else if (sees_any(b)) {
      score[b] = S::Select(SeenLanes<S>(first, count, b), S::Load(p + b * 16), score[b]);
    }
    max = S::Max(max, score[b]);
  }
  const float old_max = rows->max[r];
  const float tile_max = S::MaxLane(max);
  const float new_max = tile_max > old_max ? tile_max : old_max;
  if (new_max > old_max && old_max != kNone) {
    const F correction = VExp<S>(S::Set1(old_max - new_max));
    alignas(64) float lanes[16];
    S::Store(lanes, correction);
    rows->sum[r] *= lanes[0];
    for (int d = 0; d < dim; d += 16) {
      S::Store(rows->o[r] + d, S::Mul(S::Load(rows->o[r] + d), correction));
    }
  }
  rows->max[r] = new_max;
  FLOTILLA_UNROLL
  for (int b = 0; b < kTileBlocks; ++b) {
    if (sees_any(b)) {
      const F e = VExp<S>(S::Sub(score[b], S::Set1(new_max)));
      score[b] = sees_all(b) ? e : S::Select(SeenLanes<S>(first, count, b), e, S::Zero());
    } else {
      score[b] = S::Zero();
    }
    S::Store(p + b * 16, score[b]);
  }
  rows->sum[r] += S::LaneTree(S::Add(S::Add(score[0], score[1]), S::Add(score[2], score[3])));
}

// o[r][d, d + 16 V) += p[r][key] * V[key] for keys [begin, end) of one block, rows
// [row, row + N). `values` has `dim` elements of each key, those from `at` on being the ones;
// `scales` are d [16] and m [16].
template <class S, KvType kType, int N, int V, class Rows>
FLOTILLA_INLINE void BlockValues(const std::byte* values, const float* scales, int dim, int begin,
                                 int end, Rows* rows, int row, int first_key, int d, int at) {
  using F = typename S::F;
  F o[N * V];
  FLOTILLA_UNROLL
  for (int r = 0; r < N; ++r) {
    FLOTILLA_UNROLL
    for (int v = 0; v < V; ++v) o[r * V + v] = S::Load(rows->o[row + r] + d + v * 16);
  }
  for (int slot = begin; slot < end; ++slot) {
    F value[V];
    F scale = S::Zero(), minimum = S::Zero();
    if constexpr (HasScales(kType)) {
      scale = S::Set1(scales[slot]);
      minimum = S::Set1(scales[kKvRecordTokens + slot]);
    }
    FLOTILLA_UNROLL
    for (int v = 0; v < V; ++v) {
      if constexpr (kType == KvType::kBf16) {
        const auto words = S::ILoad(values + (slot / 2 * dim + at + v * 16) * 4);
        value[v] = slot % 2 == 0 ? EvenHalf<S>(words) : OddHalf<S>(words);
      } else {
        const std::byte* from = values + KvBytes(kType, slot * dim + at + v * 16);
        value[v] = LoadElements<S, kType>(from, scale, minimum);
      }
    }
    FLOTILLA_UNROLL
    for (int r = 0; r < N; ++r) {
      const F p = S::Set1(rows->p[row + r][first_key + slot]);
      FLOTILLA_UNROLL
      for (int v = 0; v < V; ++v) o[r * V + v] = S::Fma(p, value[v], o[r * V + v]);
    }
  }
  FLOTILLA_UNROLL
  for (int r = 0; r < N; ++r) {
    FLOTILLA_UNROLL
    for (int v = 0; v < V; ++v) S::Store(rows->o[row + r] + d + v * 16, o[r * V + v]);
  }
}

// Elements [d, d + count) of K of the tokens in slots [begin, end) of a record, token by token in
// fp32: out [16 tokens][count]. Slots beside these are written, too. `count` is a multiple of 4.
template <class S, KvType kType>
FLOTILLA_INLINE void TransposeKeys(const std::byte* record, int64_t scales, int d, int count,
                                   int begin, int end, float* out) {
  constexpr bool kDecodes = kType != KvType::kBf16 && kType != KvType::kF32;
  alignas(64) float decoded[kDecodes ? 16 * 4 * kKvRecordTokens : 1];  // [count][16 tokens]
  if constexpr (kDecodes) {
    auto scale = S::Zero(), minimum = S::Zero();
    if constexpr (HasScales(kType)) scale = ScaleVector<S, kType>(record + scales);
    if constexpr (HasCodes(kType)) minimum = S::LoadBf16(record + scales + 32);
    for (int i = 0; i < count; ++i) {
      const std::byte* at = record + KvBytes(kType, (d + i) * kKvRecordTokens);
      S::Store(decoded + i * kKvRecordTokens, LoadElements<S, kType>(at, scale, minimum));
    }
  }
  for (int slot = begin / 4 * 4; slot < end; slot += 4) {
    for (int i = 0; i < count; i += 4) {
      __m128 key[4];
      if constexpr (kType == KvType::kBf16) {
        for (int pair = 0; pair < 2; ++pair) {
          const std::byte* at = record + (((d + i) / 2 + pair) * kKvRecordTokens + slot) * 4;
          const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
          key[2 * pair] = _mm_castsi128_ps(_mm_slli_epi32(words, 16));
          key[2 * pair + 1] = _mm_castsi128_ps(
              _mm_and_si128(words, _mm_set1_epi32(static_cast<int32_t>(0xFFFF0000u))));
        }
      } else {
        const float* at =
            kDecodes ? decoded + i * kKvRecordTokens + slot
                     : reinterpret_cast<const float*>(record) + (d + i) * kKvRecordTokens + slot;
        for (int j = 0; j < 4; ++j) key[j] = _mm_loadu_ps(at + j * kKvRecordTokens);
      }
      _MM_TRANSPOSE4_PS(key[0], key[1], key[2], key[3]);
      for (int j = 0; j < 4; ++j) _mm_storeu_ps(out + (slot + j) * count + i, key[j]);
    }
  }
}

// BlockValues of the record of one block, which has V or a prefix of K. `values` are those, and
// their scales lie `scales` bytes behind the record's begin.
template <class S, KvType kType, int N, int V, class Rows>
FLOTILLA_INLINE void RecordValues(const std::byte* record, const std::byte* values,
                                  const float* token_scales, int64_t scales, int dim, int from,
                                  int to, Rows* rows, int row, int key, int d) {
  if constexpr (Rows::kPrefix) {
    alignas(64) float transposed[kKvRecordTokens * 16 * V];
    TransposeKeys<S, kType>(record, scales, d, 16 * V, from, to, transposed);
    BlockValues<S, KvType::kF32, N, V>(reinterpret_cast<const std::byte*>(transposed), nullptr,
                                       16 * V, from, to, rows, row, key, d, 0);
  } else {
    BlockValues<S, kType, N, V>(values, token_scales, dim, from, to, rows, row, key, d, d);
  }
}

// Where V and its scales lie in a record.
struct ValuePlace {
  int64_t values;
  int64_t scales;
  int dim;
};

// Adds keys [begin, end) of the tile to rows [row, row + N).
template <class S, KvType kType, int N, class Rows>
FLOTILLA_INLINE void AddValues(const std::byte* const* blocks, const ValuePlace& place, int begin,
                               int end, Rows* rows, int row) {
  constexpr int V = S::AttentionVectors(N);
  for (int b = begin / kKvRecordTokens; b * kKvRecordTokens < end; ++b) {
    const std::byte* values = blocks[b] + place.values;
    alignas(64) float scales[2 * kKvRecordTokens];
    // Those of the elements from d on, where they begin there. No vectors lie in two spans.
    const auto load_scales = [&](int d) FLOTILLA_INLINE_LAMBDA {
      constexpr bool kOneSpan = !HasRuns(kType);
      constexpr int kSpan = kOneSpan ? kMaxLatentDim : KvScaleSpan(kType, 0);
      if (kOneSpan ? d > 0 : d % kSpan != 0) return;
      const std::byte* at = blocks[b] + place.scales + d / kSpan * KvGroupScaleBytes(kType);
      if constexpr (HasScales(kType)) S::Store(scales, ScaleVector<S, kType>(at));
      if constexpr (HasCodes(kType)) {
        S::Store(scales + kKvRecordTokens, S::LoadBf16(at + 32));
      } else if constexpr (HasScales(kType)) {
        S::Store(scales + kKvRecordTokens, S::Zero());
      }
    };
    const int key = b * kKvRecordTokens;
    const int from = begin > key ? begin - key : 0;
    const int to = end - key < kKvRecordTokens ? end - key : kKvRecordTokens;
    int d = 0;
    for (; d + 16 * V <= place.dim; d += 16 * V) {
      load_scales(d);
      RecordValues<S, kType, N, V>(blocks[b], values, scales, place.scales, place.dim, from, to,
                                   rows, row, key, d);
    }
    for (; d < place.dim; d += 16) {
      load_scales(d);
      RecordValues<S, kType, N, 1>(blocks[b], values, scales, place.scales, place.dim, from, to,
                                   rows, row, key, d);
    }
  }
}

// The scores of the tile's blocks [b, end). `run_scales` are those of K that is kept by runs.
template <class S, KvType kType, int N, int kDim>
__attribute__((noinline)) void TileScores(const std::byte* const* blocks, int b, int end, int dim,
                                          int64_t offset, const std::byte* run_scales,
                                          AttentionRows<N, kDim>* rows) {
  constexpr int V = S::AttentionVectors(N);
  alignas(64) float by_element[HasRuns(kType) ? 2 * kMaxHeadDim : 1];
  if constexpr (HasRuns(kType)) {
    for (int d = 0; d < 2 * dim; d += 16) S::Store(by_element + d, S::LoadBf16(run_scales + d * 2));
  }
  const KeyScales scales{offset, by_element};
  for (; b + V <= end; b += V) {
    BlockScores<S, kType, N, V>(blocks + b, dim, scales, rows, b * kKvRecordTokens);
  }
  for (; b < end; ++b) {
    BlockScores<S, kType, N, 1>(blocks + b, dim, scales, rows, b * kKvRecordTokens);
  }
}

// Adds V of the tile: of the keys that only earlier rows see, those that all rows see, and then
// those that only later rows see.
template <class S, KvType kType, int N, int kDim>
__attribute__((noinline)) void TileValues(const std::byte* const* blocks, const ValuePlace& place,
                                          AttentionRows<N, kDim>* rows) {
  const int common_first = rows->tile_first[N - 1];
  const int common = rows->tile_keys[0] > common_first ? rows->tile_keys[0] : common_first;
  for (int r = 0; r < N - 1; ++r) {
    const int end = rows->tile_keys[r] < common_first ? rows->tile_keys[r] : common_first;
    if (rows->tile_first[r] < end) {
      AddValues<S, kType, 1>(blocks, place, rows->tile_first[r], end, rows, r);
    }
  }
  if (common_first < common) {
    AddValues<S, kType, N>(blocks, place, common_first, common, rows, 0);
  }
  for (int r = 1; r < N; ++r) {
    if (rows->tile_keys[r] > common) {
      AddValues<S, kType, 1>(blocks, place, common, rows->tile_keys[r], rows, r);
    }
  }
}

// The scores of position 0 from K of open runs, of rows that see it.
template <class S, int N, int kDim>
FLOTILLA_INLINE void FirstScores(const std::byte* key, int dim, AttentionRows<N, kDim>* rows) {
  using F = typename S::F;
  F score[N];
  FLOTILLA_UNROLL
  for (int r = 0; r < N; ++r) score[r] = S::Zero();
  for (int d = 0; d < dim; ++d) {
    uint16_t bits;
    std::memcpy(&bits, key + d * 2, sizeof bits);
    const F k = S::Set1(Bf16ToFloat(bits));
    FLOTILLA_UNROLL
    for (int r = 0; r < N; ++r) score[r] = S::Fma(S::Set1(rows->q[r][d]), k, score[r]);
  }
  FLOTILLA_UNROLL
  for (int r = 0; r < N; ++r) {
    alignas(64) float lanes[16];
    S::Store(lanes, score[r]);
    if (rows->tile_first[r] == 0 && rows->tile_keys[r] > 0) rows->p[r][0] = lanes[0];
  }
}

// Adds V of position 0 from open runs to the rows that see it, whose tile begins behind it then.
template <class S, int N, int kDim>
FLOTILLA_INLINE void AddFirstValue(const std::byte* value, int dim, AttentionRows<N, kDim>* rows) {
  for (int r = 0; r < N; ++r) {
    if (rows->tile_first[r] > 0 || rows->tile_keys[r] == 0) continue;
    rows->tile_first[r] = 1;
    const auto p = S::Set1(rows->p[r][0]);
    for (int d = 0; d < dim; d += 16) {
      S::Store(rows->o[r] + d, S::Fma(p, S::LoadBf16(value + d * 2), S::Load(rows->o[r] + d)));
    }
  }
}

template <class S, int N, int kDim>
FLOTILLA_INLINE void AttendTile(const AttentionArgs& args, int begin,
                                AttentionRows<N, kDim>* rows) {
  const KvView& cache = args.cache;
  const auto in_tile = [&](int key) {
    return key < begin ? 0 : key - begin < kTileKeys ? key - begin : kTileKeys;
  };
  for (int r = 0; r < N; ++r) {
    rows->tile_first[r] = in_tile(rows->first[r]);
    rows->tile_keys[r] = in_tile(rows->keys[r]);
  }
  const int longest = rows->tile_keys[N - 1];
  const int block_count = (longest + kKvRecordTokens - 1) / kKvRecordTokens;
  const int first_block = rows->tile_first[0] / kKvRecordTokens;
  // The rows are in one run, that of the last tile.
  const bool is_open = args.open.base != nullptr && begin + kTileKeys >= rows->keys[N - 1];
  const bool first_is_apart = args.open.base != nullptr && begin == 0 && !is_open;
  const KvView& keys = is_open && HasRuns(cache.format.key) ? args.open : cache;
  const KvView& values = is_open && HasRuns(cache.format.value) ? args.open : cache;
  const std::byte* key_blocks[kTileBlocks];
  const std::byte* value_blocks[kTileBlocks];
  const auto find_blocks = [&](const KvView& view,
                               const std::byte** blocks) FLOTILLA_INLINE_LAMBDA {
    const int64_t bytes = KvRecordBytes(view.format, view.dims);
    for (int i = first_block; i < block_count; ++i) {
      blocks[i] = KvRecord(view, bytes, args.kv_head, begin + i * kKvRecordTokens);
    }
  };
  find_blocks(keys, key_blocks);
  const int64_t key_scales = KvKeyScaleOffset(keys.format, keys.dims);
  constexpr bool kPrefix = AttentionRows<N, kDim>::kPrefix;
  const auto score = [&]<KvType kType>() FLOTILLA_INLINE_LAMBDA {
    const std::byte* run_scales = nullptr;
    if constexpr (HasRuns(kType)) {
      run_scales =
          KvHead(keys, args.kv_head, begin) + kKvRunRecords * KvRecordBytes(keys.format, keys.dims);
    }
    TileScores<S, kType>(key_blocks, first_block, block_count, keys.dims.key, key_scales,
                         run_scales, rows);
  };
  if constexpr (kPrefix) {
    VisitTokenType(keys.format.key, score);
  } else {
    VisitType(keys.format.key, score);
  }
  if (first_is_apart && HasRuns(cache.format.key)) {
    FirstScores<S>(FirstKey(args.open, args.kv_head), cache.dims.key, rows);
  }
  const bool adjusts = args.softcap != 0 || args.slopes != nullptr;
  for (int r = 0; r < N; ++r) {
    if (rows->tile_first[r] >= rows->tile_keys[r]) continue;
    if (adjusts) AdjustScores<S>(args, begin, rows, r);
    SoftmaxTile<S>(rows, r, cache.dims.value);
  }
  const ValuePlace place{KvValueOffset(values.format, values.dims),
                         kPrefix ? key_scales : KvValueScaleOffset(values.format, values.dims),
                         values.dims.value};
  if constexpr (kPrefix) {
    VisitTokenType(keys.format.key, [&]<KvType kType>() FLOTILLA_INLINE_LAMBDA {
      TileValues<S, kType>(key_blocks, place, rows);
    });
  } else {
    find_blocks(values, value_blocks);
    if (first_is_apart && HasRuns(cache.format.value)) {
      AddFirstValue<S>(FirstValue(args.open, args.kv_head), cache.dims.value, rows);
    }
    VisitType(values.format.value, [&]<KvType kType>() FLOTILLA_INLINE_LAMBDA {
      TileValues<S, kType>(value_blocks, place, rows);
    });
  }
}

// Merges the segment that begins at `begin` into the rows' totals.
template <class S, int N, int kDim>
FLOTILLA_INLINE void MergeSegment(AttentionRows<N, kDim>* rows, int begin, int dim) {
  using F = typename S::F;
  for (int r = 0; r < N; ++r) {
    if (rows->keys[r] <= begin || rows->first[r] >= begin + kSegmentKeys) continue;
    if (!rows->begun[r]) {
      rows->begun[r] = true;
      rows->total_max[r] = rows->max[r];
      rows->total_sum[r] = rows->sum[r];
      for (int d = 0; d < dim; d += 16) S::Store(rows->total[r] + d, S::Load(rows->o[r] + d));
      continue;
    }
    const float max = rows->max[r] > rows->total_max[r] ? rows->max[r] : rows->total_max[r];
    const F a = VExp<S>(S::Set1(rows->total_max[r] - max));
    const F b = VExp<S>(S::Set1(rows->max[r] - max));
    rows->total_max[r] = max;
    alignas(64) float lanes[16];
    S::Store(lanes, S::Fma(S::Set1(rows->total_sum[r]), a, S::Mul(S::Set1(rows->sum[r]), b)));
    rows->total_sum[r] = lanes[0];
    for (int d = 0; d < dim; d += 16) {
      const F o = S::Mul(S::Load(rows->o[r] + d), b);
      S::Store(rows->total[r] + d, S::Fma(S::Load(rows->total[r] + d), a, o));
    }
  }
}

// Adds the row's sink to its totals.
template <class S, int N, int kDim>
FLOTILLA_INLINE void AddSink(float sink, AttentionRows<N, kDim>* rows, int r, int dim) {
  using F = typename S::F;
  const float max = sink > rows->total_max[r] ? sink : rows->total_max[r];
  const F a = VExp<S>(S::Set1(rows->total_max[r] - max));
  alignas(64) float lanes[16];
  S::Store(lanes, S::Fma(S::Set1(rows->total_sum[r]), a, VExp<S>(S::Set1(sink - max))));
  rows->total_sum[r] = lanes[0];
  for (int d = 0; d < dim; d += 16) {
    S::Store(rows->total[r] + d, S::Mul(S::Load(rows->total[r] + d), a));
  }
}

// Rows [row, row + N) of the flattened (token, head) list.
template <class S, int kDim, int N>
__attribute__((noinline)) void AttendRows(const AttentionArgs& args, int row) {
  AttentionRows<N, kDim> rows;
  const int dim = args.cache.dims.key, value_dim = args.cache.dims.value;
  for (int r = 0; r < N; ++r) {
    const int token = (row + r) / args.heads;
    const int head = (row + r) % args.heads;
    const int row_keys = args.first_position + token + 1;
    rows.keys[r] = row_keys;
    rows.first[r] = args.window > 0 && row_keys > args.window ? row_keys - args.window : 0;
    rows.slope[r] = args.slopes == nullptr ? 0 : args.slopes[head];
    rows.begun[r] = false;
    rows.out[r] = args.out + token * args.out_stride + head * args.out_dim;
    const float* q = args.q + token * args.q_stride + head * dim;
    const auto scale = S::Set1(args.scale);
    for (int d = 0; d < dim; d += 16) S::Store(rows.q[r] + d, S::Mul(S::Load(q + d), scale));
  }
  const int first = rows.first[0], keys = rows.keys[N - 1];
  for (int segment = first / kSegmentKeys * kSegmentKeys; segment < keys; segment += kSegmentKeys) {
    for (int r = 0; r < N; ++r) {
      rows.max[r] = -__builtin_inff();
      rows.sum[r] = 0;
      for (int d = 0; d < value_dim; d += 16) S::Store(rows.o[r] + d, S::Zero());
    }
    const int end = segment + kSegmentKeys < keys ? segment + kSegmentKeys : keys;
    const int first_tile = first / kTileKeys * kTileKeys;
    for (int begin = first_tile > segment ? first_tile : segment; begin < end; begin += kTileKeys) {
      AttendTile<S>(args, begin, &rows);
    }
    MergeSegment<S>(&rows, segment, value_dim);
  }
  for (int r = 0; r < N; ++r) {
    if (args.sinks != nullptr) AddSink<S>(args.sinks[(row + r) % args.heads], &rows, r, value_dim);
    const auto inverse = S::Div(S::Set1(1.0f), S::Set1(rows.total_sum[r]));
    int d = 0;
    for (; d + 16 <= args.out_dim; d += 16) {
      S::Store(rows.out[r] + d, S::Mul(S::Load(rows.total[r] + d), inverse));
    }
    if (d == args.out_dim) continue;
    alignas(64) float last[16];
    S::Store(last, S::Mul(S::Load(rows.total[r] + d), inverse));
    for (int i = 0; d + i < args.out_dim; ++i) rows.out[r][d + i] = last[i];
  }
}

// Rows [begin, end) in groups of N, the rest in smaller ones.
template <class S, int kDim, int N>
void AttendRange(const AttentionArgs& args, int begin, int end) {
  for (; begin + N <= end; begin += N) AttendRows<S, kDim, N>(args, begin);
  if constexpr (N > 4) {
    AttendRange<S, kDim, 4>(args, begin, end);
  } else if constexpr (N > 1) {
    AttendRange<S, kDim, N - 1>(args, begin, end);
  }
}

template <class S>
void PagedAttention(const AttentionArgs& args, int token_begin, int token_end) {
  for (int token = token_begin; token < token_end;) {
    // Rows that walk the keys together are in one run, if there are runs.
    const int room = kKvRunTokens - (args.first_position + token) % kKvRunTokens;
    const bool cuts = args.open.base != nullptr && room < token_end - token;
    const int last = cuts ? token + room : token_end;
    const int begin = token * args.heads, end = last * args.heads;
    if (args.cache.dims.prefix) {
      AttendRange<S, kMaxLatentDim, S::kAttentionRows>(args, begin, end);
    } else {
      AttendRange<S, kMaxHeadDim, S::kAttentionRows>(args, begin, end);
    }
    token = last;
  }
}

}  // namespace flotilla::kernels
