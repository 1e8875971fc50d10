// The paged KV cache and attention.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/kv_codec.h"
#include "tests/kernels/kernel_fixtures.h"

namespace flotilla::kernels {
namespace {

class AttentionTest : public IsaTest {};
FLOTILLA_FOR_EACH_ISA(AttentionTest);

constexpr int kKvHeads = 2;

// Each type for both, and some that differ.
std::vector<KvFormat> AllKvFormats() {
  std::vector<KvFormat> formats;
  for (const KvType type : kAllKvTypes) formats.push_back(KvFormat::Both(type));
  formats.push_back({.key = KvType::kInt8, .value = KvType::kInt4});
  formats.push_back({.key = KvType::kInt4, .value = KvType::kInt2});
  formats.push_back({.key = KvType::kInt2, .value = KvType::kBf16});
  formats.push_back({.key = KvType::kInt8, .value = KvType::kFp8});
  formats.push_back({.key = KvType::kF16, .value = KvType::kInt8});
  formats.push_back({.key = KvType::kFp8, .value = KvType::kBf16});
  return formats;
}

// Whether a case is left out: the first two formats have all, and the others some.
bool LeavesOut(const KvFormat& format, int length) {
  const bool first = format == KvFormat::kBf16 || format == KvFormat::kF32;
  return !first && length != 1 && length != 18 && length != 65 && length != 129 && length != 257;
}

// What models do besides: a window, a softcap, slopes (ALiBi), sinks.
struct Variant {
  int window = 0;
  float softcap = 0;
  bool slopes = false;
  bool sinks = false;
};
constexpr float kSlopes[] = {0.5f, 0.25f, 0.03125f, 0.7f, 0.01f};
constexpr float kSinks[] = {0.3f, -2.0f, 4.0f, 30.0f, 0.0f};
constexpr Variant kVariants[] = {
    {},
    {.window = 1},
    {.window = 20},
    {.window = 64},
    {.window = 300},
    {.softcap = 2.0f},
    {.slopes = true},
    {.sinks = true},
    {.window = 70, .softcap = 5.0f, .slopes = true, .sinks = true},
};

struct FreeMemory {
  void operator()(std::byte* p) const { std::free(p); }
};
using Memory = std::unique_ptr<std::byte, FreeMemory>;

// All NaN, in bf16 and in fp32.
Memory Poisoned(int64_t bytes) {
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(64, std::max<int64_t>(bytes, 64))));
  std::memset(memory.get(), 0xFF, bytes);
  return memory;
}

// One sequence in a cache whose every unused byte is NaN; its blocks are scattered. It keeps all of
// its open runs.
struct Cache {
  Cache(const Ops& ops, KvFormat format, int dim, int length, testing::Random& random, int heads)
      : Cache(ops, format, KvDims::Equal(dim), length, random, heads) {}
  Cache(const Ops& ops, KvFormat format, const KvDims& dims, int length, testing::Random& random,
        int heads)
      : format(format), dims(dims), length(length), heads(heads) {
    block_tokens = format.has_runs() ? kKvRunTokens : kKvRecordTokens;
    const int blocks = (length + block_tokens - 1) / block_tokens;
    record_bytes = KvRecordBytes(format, dims);
    head_bytes = KvHeadBytes(format, dims, block_tokens);
    bytes = (blocks + 3) * kKvHeads * head_bytes;
    memory = Poisoned(bytes);
    open_bytes = format.has_runs() ? blocks * kKvHeads * KvOpenBytes(format, dims) : 0;
    open_memory = Poisoned(open_bytes);
    for (int b = 0; b < blocks; ++b) open_table.push_back(b);
    for (int b = 0; b < blocks; ++b) table.push_back(b + 2);
    for (int b = blocks - 1; b > 0; --b) std::swap(table[b], table[random.Int(0, b)]);
    k = random.Floats(static_cast<size_t>(length) * kKvHeads * dims.key, 2.0f);
    v = random.Floats(static_cast<size_t>(length) * kKvHeads * dims.value);
    q = random.Floats(static_cast<size_t>(length) * heads * dims.key, 2.0f);
    Write(ops, 0, length);
  }

  KvView view() const {
    return {.format = format,
            .dims = dims,
            .base = memory.get(),
            .block_stride = kKvHeads * head_bytes,
            .head_stride = head_bytes,
            .block_tokens = block_tokens,
            .block_table = table.data()};
  }
  KvView open() const {
    if (!format.has_runs()) return {};
    return {.format = KvFormat::kBf16,
            .dims = KvOpenDims(format, dims),
            .base = open_memory.get(),
            .block_stride = kKvHeads * KvOpenBytes(format, dims),
            .head_stride = KvOpenBytes(format, dims),
            .block_tokens = kKvRunTokens,
            .block_table = open_table.data()};
  }

  void Write(const Ops& ops, int begin, int end) {
    // A row is K and then V, as in a step.
    const int64_t key = kKvHeads * dims.key, value = dims.prefix ? 0 : kKvHeads * dims.value;
    std::vector<float> rows;
    for (int token = begin; token < end; ++token) {
      rows.insert(rows.end(), k.begin() + token * key, k.begin() + (token + 1) * key);
      rows.insert(rows.end(), v.begin() + token * value, v.begin() + (token + 1) * value);
    }
    ops.kv_write({.cache = view(),
                  .open = open(),
                  .first_position = begin,
                  .heads = kKvHeads,
                  .k = rows.data(),
                  .v = dims.prefix ? nullptr : rows.data() + key,
                  .token_stride = key + value,
                  .key_scale = key_scale,
                  .value_scale = value_scale},
                 0, end - begin);
    for (int run = begin / kKvRunTokens; format.has_runs() && (run + 1) * kKvRunTokens <= end;
         ++run) {
      ops.kv_seal({.cache = view(), .open = open(), .run = run}, 0, kKvHeads);
    }
  }

  // Attention of query tokens [begin, end) in one call, [tokens, heads, out_dim], or all of V if
  // that is 0.
  std::vector<float> Attend(const Ops& ops, int kv_head, int begin, int end,
                            const Variant& variant = {}, int out_dim = 0) const {
    if (out_dim == 0) out_dim = dims.value;
    const int64_t out_stride = int64_t{heads} * out_dim;
    std::vector<float> out(static_cast<size_t>((end - begin) * out_stride));
    ops.paged_attention({.cache = view(),
                         .open = open(),
                         .kv_head = kv_head,
                         .first_position = begin,
                         .heads = heads,
                         .q = q.data() + static_cast<int64_t>(begin) * heads * dims.key,
                         .q_stride = heads * dims.key,
                         .scale = 1.0f / std::sqrt(static_cast<float>(dims.key)),
                         .window = variant.window,
                         .softcap = variant.softcap,
                         .slopes = variant.slopes ? kSlopes : nullptr,
                         .sinks = variant.sinks ? kSinks : nullptr,
                         .out_dim = out_dim,
                         .out = out.data(),
                         .out_stride = out_stride},
                        0, end - begin);
    return out;
  }

  // Whether both have the same bytes in memory.
  bool SameBytes(const Cache& other) const {
    return std::memcmp(memory.get(), other.memory.get(), bytes) == 0 &&
           std::memcmp(open_memory.get(), other.open_memory.get(), open_bytes) == 0;
  }

  KvFormat format;
  KvDims dims;
  int length, heads, block_tokens;
  int64_t record_bytes, head_bytes;
  int64_t bytes, open_bytes;
  Memory memory, open_memory;
  std::vector<int32_t> table, open_table;
  std::vector<float> k, v, q;            // [length, heads, dims]
  float key_scale = 0, value_scale = 0;  // as in KvWriteArgs
};

// Of K alone.
int64_t RecordBytes(KvType type, int dim) {
  return (KvBytes(type, 16 * dim) + KvKeyScaleBytes(type, dim) + 63) / 64 * 64;
}

constexpr int kLengths[] = {1,  2,   15,  16,  17,  31,  33,  63,  64,  65,
                            66, 127, 129, 255, 256, 257, 320, 511, 513, 1037};

TEST_P(AttentionTest, SameBitsAsReference) {
  for (const KvFormat& format : AllKvFormats()) {
    for (const int dim : {64, 16, 80, 256}) {
      for (const int length : kLengths) {
        if ((dim != 64 && length > 130) || LeavesOut(format, length)) continue;
        testing::Random random(length * 1000 + dim);
        const int heads = random.Int(1, 5);
        SCOPED_TRACE(absl::StrCat("dim ", dim, " length ", length, " heads ", heads, " ",
                                  KvFormatName(format)));
        const Cache cache(ops(), format, dim, length, random, heads);
        const int begin = std::max(0, length - random.Int(1, 9));
        for (const Variant& variant : kVariants) {
          SCOPED_TRACE(absl::StrCat("variant ", &variant - kVariants));
          const std::vector<float> out = cache.Attend(ops(), 1, begin, length, variant);
          ASSERT_TRUE(SameBits(cache.Attend(reference(), 1, begin, length, variant), out));
          for (const float x : out) ASSERT_TRUE(std::isfinite(x));
        }
      }
    }
  }
}

// With V in K the results are those of K and V apart, element by element, and V has no memory.
TEST_P(AttentionTest, APrefixOfKeysIsLikeValuesOfTheirOwn) {
  struct Dims {
    int dim, prefix;
  };
  for (const KvType type : kAllKvTypes) {
    if (HasRuns(type)) continue;
    const KvFormat format = KvFormat::Both(type);
    for (const Dims& dims : {Dims{576, 512}, Dims{48, 32}, Dims{80, 80}, Dims{240, 16}}) {
      for (const int length : {1, 15, 16, 18, 63, 65, 129, 257, 530}) {
        if (dims.dim > 500 && length > 300) continue;
        if (LeavesOut(format, length) || (type != KvType::kBf16 && dims.dim > 500 && length > 65)) {
          continue;
        }
        testing::Random random(length * 1000 + dims.dim);
        const int heads = random.Int(1, 5);
        SCOPED_TRACE(absl::StrCat("dim ", dims.dim, " length ", length, " heads ", heads, " ",
                                  KvFormatName(format)));
        const Cache cache(ops(), format, KvDims{dims.dim, dims.prefix, true}, length, random,
                          heads);
        EXPECT_EQ(cache.record_bytes, RecordBytes(format.key, dims.dim));
        std::optional<Cache> apart;
        if (dims.dim <= kMaxHeadDim) {
          testing::Random same(length * 1000 + dims.dim);
          apart.emplace(reference(), format, dims.dim, length, same, same.Int(1, 5));
          apart->k = apart->v = cache.k;
          apart->q = cache.q;
          apart->Write(reference(), 0, length);
        }
        const int begin = std::max(0, length - random.Int(1, 9));
        for (const Variant& variant : kVariants) {
          SCOPED_TRACE(absl::StrCat("variant ", &variant - kVariants));
          const std::vector<float> out = cache.Attend(ops(), 1, begin, length, variant);
          for (const float x : out) ASSERT_TRUE(std::isfinite(x));
          ASSERT_TRUE(SameBits(cache.Attend(reference(), 1, begin, length, variant), out));
          if (!apart.has_value()) continue;
          const std::vector<float> whole = apart->Attend(reference(), 1, begin, length, variant);
          for (size_t i = 0; i < out.size(); ++i) {
            ASSERT_EQ(out[i], whole[i / dims.prefix * dims.dim + i % dims.prefix]) << i;
          }
        }
      }
    }
  }
}

// K and V need not be equally long, and a result may have fewer elements than V. Nothing is written
// beside these: results lie side by side.
TEST_P(AttentionTest, KeysAndValuesOfDifferentLengths) {
  for (const KvFormat& format : AllKvFormats()) {
    for (const KvDims& dims : {KvDims{48, 16}, KvDims{16, 64}, KvDims{192, 128}}) {
      for (const int length : {1, 15, 16, 18, 63, 65, 129, 300}) {
        if (LeavesOut(format, length)) continue;
        testing::Random random(length * 1000 + dims.key);
        const int heads = random.Int(1, 5);
        SCOPED_TRACE(absl::StrCat("K ", dims.key, " V ", dims.value, " length ", length, " heads ",
                                  heads, " ", KvFormatName(format)));
        const Cache cache(ops(), format, dims, length, random, heads);
        const int64_t both =
            KvBytes(format.key, 16 * dims.key) + KvBytes(format.value, 16 * dims.value) +
            KvKeyScaleBytes(format.key, dims.key) + KvScaleBytes(format.value, dims.value);
        EXPECT_EQ(cache.record_bytes, (both + 63) / 64 * 64);
        // The same K and V, the shorter one filled up with zeros.
        const int most = std::max(dims.key, dims.value);
        Cache equal(reference(), format, most, length, random, heads);
        const auto fill = [&](const std::vector<float>& from, int dim, std::vector<float>& to) {
          std::fill(to.begin(), to.end(), 0.0f);
          for (size_t i = 0; i < from.size(); ++i) to[i / dim * most + i % dim] = from[i];
        };
        fill(cache.k, dims.key, equal.k);
        fill(cache.v, dims.value, equal.v);
        fill(cache.q, dims.key, equal.q);
        for (float& x : equal.q) {
          x *= std::sqrt(static_cast<float>(most)) / std::sqrt(static_cast<float>(dims.key));
        }
        equal.Write(reference(), 0, length);
        const int begin = std::max(0, length - random.Int(1, 9));
        for (const Variant& variant : kVariants) {
          const std::vector<float> out = cache.Attend(ops(), 1, begin, length, variant);
          ASSERT_TRUE(SameBits(cache.Attend(reference(), 1, begin, length, variant), out));
          const std::vector<float> whole = equal.Attend(reference(), 1, begin, length, variant);
          for (size_t i = 0; i < out.size(); ++i) {
            ASSERT_NEAR(out[i], whole[i / dims.value * most + i % dims.value], 1e-5) << i;
          }
          for (const int less : {dims.value - 1, dims.value - 11}) {
            const std::vector<float> part = cache.Attend(ops(), 1, begin, length, variant, less);
            ASSERT_TRUE(SameBits(cache.Attend(reference(), 1, begin, length, variant, less), part));
            for (size_t i = 0; i < part.size(); ++i) {
              ASSERT_EQ(part[i], out[i / less * dims.value + i % less]) << i;
            }
          }
        }
      }
    }
  }
}

// The last token's attention of one head, in double precision.
std::vector<double> InDouble(const Cache& cache, int head, const Variant& variant) {
  const int length = cache.length, dim = cache.dims.key;
  const float* q = &cache.q[((length - 1) * cache.heads + head) * dim];
  const int first = variant.window > 0 ? std::max(0, length - variant.window) : 0;
  std::vector<double> score(length);
  double max = variant.sinks ? kSinks[head] : -1e300;
  for (int j = first; j < length; ++j) {
    for (int d = 0; d < dim; ++d) score[j] += double{q[d]} * cache.k[j * kKvHeads * dim + d];
    score[j] /= std::sqrt(dim);
    if (variant.softcap > 0) score[j] = variant.softcap * std::tanh(score[j] / variant.softcap);
    if (variant.slopes) score[j] += double{kSlopes[head]} * (j - (length - 1));
    max = std::max(max, score[j]);
  }
  double sum = variant.sinks ? std::exp(kSinks[head] - max) : 0;
  std::vector<double> exact(dim);
  for (int j = first; j < length; ++j) {
    const double p = std::exp(score[j] - max);
    sum += p;
    for (int d = 0; d < dim; ++d) exact[d] += p * cache.v[j * kKvHeads * dim + d];
  }
  for (double& x : exact) x /= sum;
  return exact;
}

TEST_P(AttentionTest, NearDoublePrecision) {
  testing::Random random(6);
  const int dim = 64;
  const int heads = 3;
  for (const int length : {1, 40, 300, 1000}) {
    const Cache cache(ops(), KvFormat::kF32, dim, length, random, heads);
    for (const Variant& variant : kVariants) {
      SCOPED_TRACE(absl::StrCat("length ", length, ", variant ", &variant - kVariants));
      const std::vector<float> out = cache.Attend(ops(), 0, length - 1, length, variant);
      for (int head = 0; head < heads; ++head) {
        const std::vector<double> exact = InDouble(cache, head, variant);
        for (int d = 0; d < dim; ++d) EXPECT_NEAR(out[head * dim + d], exact[d], 4e-6);
      }
    }
  }
}

// Blocks before the window of all tokens may be gone.
TEST_P(AttentionTest, BlocksBeforeTheWindowAreNotRead) {
  testing::Random random(3);
  Cache cache(ops(), KvFormat::kBf16, 64, 700, random, 2);
  const Variant variant{.window = 100};
  const std::vector<float> before = cache.Attend(ops(), 0, 680, 700, variant);
  // Token 680 sees positions from 581 on.
  for (int block = 0; block < 580 / kKvRecordTokens; ++block) cache.table[block] = INT32_MAX / 2;
  EXPECT_TRUE(SameBits(before, cache.Attend(ops(), 0, 680, 700, variant)));
}

TEST_P(AttentionTest, ChunkingChangesNothing) {
  std::vector<int> chunks = {1, 7, 64};
  // The reference is slow.
  if (GetParam() != Isa::kReference || std::getenv("FLOTILLA_LONG") != nullptr) {
    chunks.insert(chunks.end(), {2, 16, 255});
  }
  for (const KvFormat& format :
       {KvFormat::kBf16, KvFormat::kF32, KvFormat{KvType::kInt8, KvType::kFp8},
        KvFormat{KvType::kInt4, KvType::kInt4}, KvFormat{KvType::kInt8, KvType::kInt2}}) {
    for (const int heads : {1, 3}) {
      testing::Random random(17 + heads);
      const int length = 530;
      const Cache cache(ops(), format, 64, length, random, heads);
      for (const Variant& variant : {kVariants[0], kVariants[2], kVariants[8]}) {
        const std::vector<float> whole = cache.Attend(ops(), 0, 0, length, variant);
        for (const int chunk : chunks) {
          std::vector<float> parts;
          for (int begin = 0; begin < length; begin += chunk) {
            const std::vector<float> part =
                cache.Attend(ops(), 0, begin, std::min(begin + chunk, length), variant);
            parts.insert(parts.end(), part.begin(), part.end());
          }
          ASSERT_TRUE(SameBits(whole, parts)) << "chunk " << chunk << " heads " << heads;
        }
      }
    }
  }
}

TEST_P(AttentionTest, LaterTokensChangeNothing) {
  // The result of a query does not change when keys after it are written.
  testing::Random random(23);
  for (const int length : {5, 16, 63, 200}) {
    testing::Random same(length);
    Cache shorter(ops(), KvFormat::kBf16, 64, length, same, 3);
    const std::vector<float> before = shorter.Attend(ops(), 0, 0, length);
    testing::Random again(length);
    Cache longer(ops(), KvFormat::kBf16, 64, length + 40, random, 3);
    std::copy(shorter.k.begin(), shorter.k.end(), longer.k.begin());
    std::copy(shorter.v.begin(), shorter.v.end(), longer.v.begin());
    std::copy(shorter.q.begin(), shorter.q.end(), longer.q.begin());
    for (size_t i = shorter.v.size(); i < longer.v.size(); ++i) longer.v[i] = HUGE_VALF;
    longer.Write(ops(), 0, length + 40);
    EXPECT_TRUE(SameBits(before, longer.Attend(ops(), 0, 0, length))) << length;
  }
}

// What a token sees of its own run is bf16 and not sealed, and what it sees of others is sealed.
TEST_P(AttentionTest, ATokenSeesItsOwnRunOpenAndOthersSealed) {
  using enum KvType;
  for (const KvFormat& format : {KvFormat{kInt4, kInt4}, KvFormat{kInt8, kInt4},
                                 KvFormat{kInt2, kBf16}, KvFormat{kInt2, kInt4}}) {
    SCOPED_TRACE(KvFormatName(format));
    for (const int run : {0, 1, 3}) {
      testing::Random random(53);
      constexpr int kLength = 4 * kKvRunTokens;
      Cache cache(ops(), format, 64, kLength, random, 3);
      const int begin = run * kKvRunTokens, end = begin + kKvRunTokens;
      const std::vector<float> before = cache.Attend(ops(), 0, begin, end);
      ASSERT_TRUE(SameBits(before, cache.Attend(reference(), 0, begin, end)));
      const int64_t open = cache.open_bytes / 4;
      const KvView view = cache.open();
      for (int other = 0; other < 4; ++other) {
        if (other == run) continue;
        for (int head = 0; head < kKvHeads; ++head) {
          // Behind the first run lies position 0.
          const int64_t bytes = other == 0 ? KvFirstOffset(view.dims) : view.head_stride;
          std::memset(view.base + other * open + head * view.head_stride, 0xFF, bytes);
        }
      }
      // What is not kept by runs stays where it is.
      if (HasRuns(format.key) && HasRuns(format.value)) {
        const int64_t block = kKvHeads * cache.head_bytes;
        std::memset(cache.memory.get() + cache.table[run] * block, 0xFF, block);
      }
      EXPECT_TRUE(SameBits(before, cache.Attend(ops(), 0, begin, end))) << run;
    }
  }
}

// Rows of later runs see position 0 in bf16, and not its codes.
TEST_P(AttentionTest, LaterRunsSeePositionZeroAsItWas) {
  using enum KvType;
  for (const KvFormat& format :
       {KvFormat{kInt4, kInt4}, KvFormat{kInt8, kInt4}, KvFormat{kInt2, kBf16}}) {
    SCOPED_TRACE(KvFormatName(format));
    testing::Random random(67);
    constexpr int kDim = 64, kLength = 3 * kKvRunTokens;
    Cache cache(ops(), format, kDim, kLength, random, 3);
    const auto attend = [&] { return cache.Attend(ops(), 0, kKvRunTokens, kLength); };
    const std::vector<float> before = attend();
    std::byte* const block = cache.memory.get() + cache.table[0] * kKvHeads * cache.head_bytes;
    const std::vector<std::byte> codes(block, block + cache.head_bytes);
    for (int d = 0; HasRuns(format.key) && d < kDim; ++d) {
      block[KvBytes(format.key, d * kKvRecordTokens)] ^= std::byte{1};
    }
    if (HasRuns(format.value)) block[KvValueOffset(format, cache.dims)] ^= std::byte{0xFF};
    EXPECT_TRUE(SameBits(before, attend()));

    const KvView open = cache.open();
    std::byte* const first = open.base + KvFirstOffset(open.dims);
    first[1] ^= std::byte{1};
    EXPECT_FALSE(SameBits(before, attend()));
    // K of the other positions does not suffer from its size.
    cache.k[5] = 300;
    cache.Write(ops(), 0, kLength);
    if (!HasRuns(format.key)) continue;
    const int64_t key_bytes = KvBytes(format.key, kKvRecordTokens * kDim);
    EXPECT_EQ(std::memcmp(block, codes.data(), key_bytes), 0);
    const int64_t scales = kKvRunRecords * cache.record_bytes;
    EXPECT_EQ(std::memcmp(block + scales, codes.data() + scales, 4 * kDim), 0);
  }
}

// K of int4 and int2 as the codec says, with the scale of an element in all tokens of the run, but
// for position 0, which has the codes of position 1.
TEST_P(AttentionTest, SealsTheLayout) {
  for (const KvType type : {KvType::kInt4, KvType::kInt2}) {
    SCOPED_TRACE(std::string(KvTypeName(type)));
    testing::Random random(37);
    constexpr int dim = 48;
    const Cache cache(ops(), KvFormat::Both(type), dim, kKvRunTokens + 3, random, 1);
    const auto rounded = [](float x) { return Bf16ToFloat(FloatToBf16(x)); };
    for (int head = 0; head < kKvHeads; ++head) {
      const std::byte* keys =
          cache.memory.get() + (cache.table[0] * kKvHeads + head) * cache.head_bytes;
      const auto* scales =
          reinterpret_cast<const uint16_t*>(keys + kKvRunRecords * cache.record_bytes);
      for (int d = 0; d < dim; ++d) {
        std::vector<float> tokens;
        for (int i = 0; i < kKvRunTokens; ++i) {
          tokens.push_back(rounded(cache.k[(std::max(i, 1) * kKvHeads + head) * dim + d]));
        }
        const KvScale scale = KvScaleOf(type, tokens.data(), kKvRunTokens);
        ASSERT_EQ(scales[d], scale.d);
        ASSERT_EQ(scales[dim + d], scale.m);
        for (int i = 0; i < kKvRunTokens; ++i) {
          std::byte word[8] = {};
          KvEncode(type, tokens[i], scale, 0, word);
          const std::byte* record = keys + i / kKvRecordTokens * cache.record_bytes;
          ASSERT_EQ(KvDecode(type, record, KvKeyIndex(type, i % kKvRecordTokens, d), scale),
                    KvDecode(type, word, 0, scale))
              << d << " of token " << i;
        }
      }
      // V of a token has scales of its own, as it has in other formats.
      for (int i = 0; i < kKvRunTokens; ++i) {
        std::vector<float> token;
        for (int d = 0; d < dim; ++d) {
          token.push_back(rounded(cache.v[(i * kKvHeads + head) * dim + d]));
        }
        const KvScale scale = KvScaleOf(type, token.data(), dim);
        const std::byte* record = keys + i / kKvRecordTokens * cache.record_bytes;
        const int slot = i % kKvRecordTokens;
        for (int d = 0; d < dim; ++d) {
          std::byte word[8] = {};
          KvEncode(type, token[d], scale, 0, word);
          ASSERT_EQ(KvDecode(type, record + KvValueOffset(cache.format, cache.dims),
                             KvValueIndex(type, dim, slot, d), scale),
                    KvDecode(type, word, 0, scale));
        }
        KvScale stored;
        const std::byte* at = record + KvValueScaleOffset(cache.format, cache.dims) + slot * 2;
        std::memcpy(&stored.d, at, 2);
        std::memcpy(&stored.m, at + kKvRecordTokens * 2, 2);
        ASSERT_EQ(stored.d, scale.d);
        ASSERT_EQ(stored.m, scale.m);
      }
    }
  }
}

TEST_P(AttentionTest, WritesTheLayout) {
  testing::Random random(31);
  for (const KvFormat& format : AllKvFormats()) {
    if (format.has_runs()) continue;
    constexpr int dim = 48;
    const int length = 21;
    SCOPED_TRACE(KvFormatName(format));
    const Cache cache(ops(), format, dim, length, random, 1);
    const Cache& c = cache;
    // As the codec says, with the scales of the token.
    const auto scale = [](KvType type, const std::byte* scales, int slot) {
      KvScale result;
      if (HasScales(type)) std::memcpy(&result.d, scales + slot * 2, 2);
      if (HasCodes(type)) std::memcpy(&result.m, scales + 32 + slot * 2, 2);
      return result;
    };
    const auto stored = [](KvType type, const float* token, int d) {
      std::byte word[8] = {};
      const KvScale scale = KvScaleOf(type, token, dim);
      KvEncode(type, token[d], scale, 0, word);
      return KvDecode(type, word, 0, scale);
    };
    for (int position = 0; position < 32; ++position) {
      const int slot = position % kKvRecordTokens;
      for (int head = 0; head < kKvHeads; ++head) {
        const std::byte* keys = c.memory.get() +
                                c.table[position / kKvRecordTokens] * kKvHeads * c.record_bytes +
                                head * c.record_bytes;
        const std::byte* values = keys + KvValueOffset(format, cache.dims);
        for (int d = 0; d < dim; ++d) {
          const auto at = [&](KvType type, const std::byte* elements, int64_t scales,
                              int64_t index) {
            return KvDecode(type, elements, index, scale(type, keys + scales, slot));
          };
          const float key = at(format.key, keys, KvKeyScaleOffset(format, cache.dims),
                               KvKeyIndex(format.key, slot, d));
          const float value = at(format.value, values, KvValueScaleOffset(format, cache.dims),
                                 KvValueIndex(format.value, dim, slot, d));
          if (position < length) {
            const size_t token = (static_cast<size_t>(position) * kKvHeads + head) * dim;
            ASSERT_EQ(key, stored(format.key, &c.k[token], d));
            ASSERT_EQ(value, stored(format.value, &c.v[token], d));
          } else {
            ASSERT_TRUE(std::isnan(key));
            // The first write of the pair has cleared the half of V that belongs to the next token.
            const bool partner = format.value == KvType::kBf16 && position == length;
            ASSERT_TRUE(partner ? value == 0.0f : std::isnan(value)) << position;
          }
        }
      }
    }
  }
}

// What the codec loses, and what it does with elements that it cannot hold.
TEST(KvCodecTest, StaysWithinItsSteps) {
  testing::Random random(5);
  constexpr int kElements = 64;
  for (const KvType type : kAllKvTypes) {
    SCOPED_TRACE(std::string(KvTypeName(type)));
    for (int round = 0; round < 200; ++round) {
      const float size = std::ldexp(1.0f, random.Int(-12, 12));
      std::vector<float> x = random.Floats(kElements, size);
      const float shift = random.Unit() * size;
      for (float& element : x) element += round % 3 == 0 ? shift : 0;
      const KvScale scale = KvScaleOf(type, x.data(), kElements);
      const auto [low, high] = std::minmax_element(x.begin(), x.end());
      const float largest = std::max(std::fabs(*low), std::fabs(*high));
      for (const float element : x) {
        std::byte stored[128] = {};
        const int index = random.Int(0, 31);
        KvEncode(type, element, scale, index, stored);
        const float decoded = KvDecode(type, stored, index, scale);
        const float bound = type == KvType::kF32    ? 0
                            : type == KvType::kBf16 ? std::fabs(element) / 256
                            : type == KvType::kF16  ? std::max(std::fabs(element) / 2048, 0x1p-25f)
                            // Half a step; m and d are bf16.
                            : type == KvType::kFp8E5m2 ? std::max(std::fabs(element) / 8, 0x1p-17f)
                            : HasCodes(type)
                                ? (*high - *low + largest / 128) /
                                      static_cast<float>(LargestKvCode(type)) / 2 * 1.01f
                                : std::max(std::fabs(element) / 15.9f, largest / 448 / 512);
        ASSERT_LE(std::fabs(decoded - element), bound)
            << element << " of " << *low << " to " << *high;
      }
    }
    for (const float bad : {HUGE_VALF, -HUGE_VALF, std::numeric_limits<float>::quiet_NaN()}) {
      if (!HasScales(type)) continue;
      std::vector<float> x(kElements, 1.0f);
      x[3] = bad;
      const KvScale scale = KvScaleOf(type, x.data(), kElements);
      std::byte stored[8] = {};
      KvEncode(type, x[0], scale, 0, stored);
      EXPECT_TRUE(std::isnan(KvDecode(type, stored, 0, scale)));
    }
    // What a type cannot hold is no number, so that it is noticed.
    if (type != KvType::kF16 && type != KvType::kFp8E5m2) continue;
    const float largest = type == KvType::kF16 ? 65504 : 57344;
    const float past = type == KvType::kF16 ? 65520 : 61440;  // would be rounded to infinity
    const auto kept = [&](float element) {
      std::byte stored[8] = {};
      KvEncode(type, element, {}, 0, stored);
      return KvDecode(type, stored, 0, {});
    };
    EXPECT_EQ(kept(std::nextafter(past, 0.0f)), largest);
    EXPECT_EQ(kept(-std::nextafter(past, 0.0f)), -largest);
    for (const float bad : {past, -past, HUGE_VALF, -HUGE_VALF}) {
      EXPECT_TRUE(std::isnan(kept(bad))) << bad;
    }
  }
}

// A given scale is rounded up, as a token's own is. Elements past 448 of it are cut off, and those
// that are no numbers are not.
TEST(KvCodecTest, TakesAGivenScaleOfFp8) {
  constexpr float kGiven = 0.3f;
  const auto kept = [&](float element) {
    const float x[2] = {element, 1};
    const KvScale scale = KvScaleOf(KvType::kFp8, x, 2, kGiven);
    std::byte stored[8] = {};
    KvEncode(KvType::kFp8, element, scale, 0, stored);
    return KvDecode(KvType::kFp8, stored, 0, scale);
  };
  const float d = Bf16ToFloat(KvScaleOf(KvType::kFp8, &kGiven, 1, kGiven).d);
  EXPECT_GE(d, kGiven);
  EXPECT_LE(d, kGiven * (1 + 1.0f / 128));
  for (const float element : {0.0f, d, -3 * d, 448 * d, d / 512}) EXPECT_EQ(kept(element), element);
  EXPECT_EQ(kept(449 * d), 448 * d);
  EXPECT_EQ(kept(-1e30f), -448 * d);
  EXPECT_EQ(kept(d / 2048), 0);
  for (const float bad : {HUGE_VALF, -HUGE_VALF, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(std::isnan(kept(bad)));
  }
  // Other types have no use for it.
  const float x[2] = {-1, 2};
  for (const KvType type : kAllKvTypes) {
    if (type == KvType::kFp8) continue;
    const KvScale own = KvScaleOf(type, x, 2), given = KvScaleOf(type, x, 2, kGiven);
    EXPECT_EQ(own.d, given.d);
    EXPECT_EQ(own.m, given.m);
  }
}

// Every path has the bytes of the codec, whatever the elements are.
TEST_P(AttentionTest, WritesTheSameBytesOfAnySize) {
  for (const KvFormat& format : AllKvFormats()) {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      SCOPED_TRACE(absl::StrCat(KvFormatName(format), " seed ", seed));
      testing::Random random(seed), a(seed), b(seed);
      const int length = format.has_runs() ? kKvRunTokens : kKvRecordTokens;
      Cache expected(reference(), format, 48, length, a, 1);
      Cache actual(ops(), format, 48, length, b, 1);
      const int special = seed % 8;
      for (float& x : expected.k) {
        if (special < 4) {
          constexpr float kSizes[] = {0.0f, 1e-40f, 3.4e38f, 2e38f};
          x = random.OneIn(2) ? kSizes[special] : -kSizes[special];
          continue;
        }
        x = random.OneIn(5) ? 0.0f : random.Unit() * std::ldexp(1.0f, random.Int(-30, 20));
        if (random.OneIn(400)) x = random.OneIn(2) ? HUGE_VALF : std::nanf("");
      }
      expected.v = actual.v = actual.k = expected.k;
      if (seed % 2 == 0) {
        expected.key_scale = actual.key_scale = std::ldexp(1.1f, random.Int(-90, 90));
        expected.value_scale = actual.value_scale = std::ldexp(1.7f, random.Int(-20, 10));
      }
      expected.Write(reference(), 0, length);
      actual.Write(ops(), 0, length);
      EXPECT_TRUE(expected.SameBytes(actual));
    }
  }
}

TEST_P(AttentionTest, WritesTheSameBytesAsReference) {
  for (const KvFormat& format : AllKvFormats()) {
    testing::Random a(41), b(41);
    const Cache expected(reference(), format, 64, 75, a, 1);
    const Cache actual(ops(), format, 64, 75, b, 1);
    EXPECT_TRUE(expected.SameBytes(actual));
  }
}

TEST_P(AttentionTest, WritingInPiecesEqualsWritingAtOnce) {
  for (const KvFormat& format : AllKvFormats()) {
    testing::Random random(43), same(43);
    const int length = 150;
    const Cache whole(ops(), format, 64, length, same, 1);
    Cache cache(ops(), format, 64, length, random, 1);
    std::memset(cache.memory.get(), 0xFF, cache.bytes);
    std::memset(cache.open_memory.get(), 0xFF, cache.open_bytes);
    for (int begin = 0; begin < length;) {
      const int end = std::min(length, begin + random.Int(1, 23));
      cache.Write(ops(), begin, end);
      begin = end;
    }
    EXPECT_TRUE(whole.SameBytes(cache));
  }
}

}  // namespace
}  // namespace flotilla::kernels
