#include "tests/kernels/workloads.h"

#include <cmath>
#include <memory>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/rt/aligned_buffer.h"
#include "kernels/rope_table.h"
#include "model/rope_frequencies.h"
#include "tests/kernels/kernel_fixtures.h"

namespace flotilla::kernels {
namespace {

using Call = std::function<void(const Ops&)>;

constexpr int kHidden = 576;
constexpr int kHeadDim = 64;
constexpr int kVocabulary = 49152;

// The values on a boundary of a cache line, as what a worker computes with: where rows lie
// otherwise, vector ops take up to twice as long, and their references do not.
AlignedBuffer<float> Aligned(const std::vector<float>& values) {
  AlignedBuffer<float> made(static_cast<int64_t>(values.size()));
  absl::c_copy(values, made.data());
  return made;
}

// In memory.
double BitsPerWeight(model::GgmlType format) {
  const auto record = PackedMatrix::Create(model::EncodingOf(format), kPanelColumns, kBlockK);
  return record.ok() ? 8.0 * record->bytes() / (kPanelColumns * kBlockK) : 0;
}

// out[rows, columns] = x[rows, k] W; integer activations or fp32.
Workload MatMul(model::GgmlType format, bool integer, int rows, int columns, int k) {
  const int64_t panels = (columns + kPanelColumns - 1) / kPanelColumns;
  const auto make = [=]() -> Call {
    testing::Random random(1);
    auto matrix = std::make_shared<PackedMatrix>(
        Pack(RandomWeights(random, model::EncodingOf(format), columns, k)));
    const std::vector<float> values = random.Floats(static_cast<size_t>(rows) * k);
    auto x = std::make_shared<AlignedBuffer<float>>(Aligned(values));
    auto quantized = std::make_shared<QuantizedBuffer>(
        Quantize(GetOps(DetectIsas().back()), values, rows, matrix->view()));
    auto out = std::make_shared<AlignedBuffer<float>>(rows * columns);
    return [=](const Ops& ops) {
      const MatrixView weights = matrix->view();
      if (integer) {
        ops.matmul_i16({.weights = weights,
                        .x = quantized->view(),
                        .rows = rows,
                        .out = out->data(),
                        .out_stride = columns},
                       0, weights.panels());
      } else {
        ops.matmul_f32({.weights = weights,
                        .x = x->data(),
                        .x_stride = k,
                        .rows = rows,
                        .out = out->data(),
                        .out_stride = columns},
                       0, weights.panels());
      }
    };
  };
  return {absl::StrCat(integer ? "matmul_i16/" : "matmul_f32/",
                       absl::AsciiStrToLower(ToAbsl(model::GgmlTypeName(format))), "/rows:", rows,
                       "/", columns, "x", k),
          2.0 * rows * columns * k, BitsPerWeight(format) / 8 * panels * kPanelColumns * k, make};
}

// One KV head and the query heads that share it.
struct Heads {
  int count = 3;
  KvDims dims = KvDims::Equal(kHeadDim);
};

// K and V of one sequence and one KV head.
struct HeadKv {
  HeadKv(KvFormat format, const KvDims& dims, int length) {
    const int block_tokens = format.has_runs() ? kKvRunTokens : kKvRecordTokens;
    const int blocks = (length + block_tokens - 1) / block_tokens;
    for (int b = 0; b < blocks; ++b) table.push_back(b);
    const auto view = [&](KvFormat of, const KvDims& size, int64_t block, auto& bytes) {
      bytes.resize(static_cast<size_t>(blocks * block + 64));
      const auto address = reinterpret_cast<uintptr_t>(bytes.data());
      return KvView{.format = of,
                    .dims = size,
                    .base = bytes.data() + (64 - address % 64) % 64,
                    .block_stride = block,
                    .head_stride = block,
                    .block_tokens = block_tokens,
                    .block_table = table.data()};
    };
    cache = view(format, dims, KvHeadBytes(format, dims, block_tokens), memory);
    if (!format.has_runs()) return;
    open = view(KvFormat::kBf16, KvOpenDims(format, dims), KvOpenBytes(format, dims), open_memory);
  }

  // K and V of tokens [0, tokens), with K as V.
  void Write(const Ops& ops, const AlignedBuffer<float>& k, int tokens) const {
    ops.kv_write({.cache = cache,
                  .open = open,
                  .heads = 1,
                  .k = k.data(),
                  .v = k.data(),
                  .token_stride = cache.dims.key},
                 0, tokens);
    for (int run = 0; open.base != nullptr && (run + 1) * kKvRunTokens <= tokens; ++run) {
      ops.kv_seal({.cache = cache, .open = open, .run = run}, 0, 1);
    }
  }

  std::vector<int32_t> table;
  std::vector<std::byte> memory, open_memory;
  KvView cache, open;
};

// Attention of one KV head's query heads, `tokens` queries at the end of `length` keys.
Workload Attention(KvFormat format, int tokens, int length, const Heads& heads = {}) {
  const auto make = [=]() -> Call {
    struct State {
      AlignedBuffer<float> q, out;
      std::unique_ptr<HeadKv> kv;
    };
    testing::Random random(2);
    auto state = std::make_shared<State>();
    state->q = Aligned(random.Floats(static_cast<size_t>(tokens) * heads.count * heads.dims.key));
    state->out = AlignedBuffer<float>(state->q.size());
    const auto k = Aligned(random.Floats(static_cast<size_t>(length) * heads.dims.key));
    state->kv = std::make_unique<HeadKv>(format, heads.dims, length);
    state->kv->Write(GetOps(DetectIsas().back()), k, length);
    return [=](const Ops& ops) {
      ops.paged_attention({.cache = state->kv->cache,
                           .open = state->kv->open,
                           .first_position = length - tokens,
                           .heads = heads.count,
                           .q = state->q.data(),
                           .q_stride = heads.count * heads.dims.key,
                           .scale = 0.125f,
                           .out_dim = heads.dims.value,
                           .out = state->out.data(),
                           .out_stride = heads.count * heads.dims.value},
                          0, tokens);
    };
  };
  const double keys = length - (tokens - 1) / 2.0;
  return {
      absl::StrCat(heads.dims.prefix ? "latent_attention/" : "paged_attention/",
                   KvFormatName(format), "/tokens:", tokens, "/keys:", length),
      2.0 * tokens * heads.count * (heads.dims.key + heads.dims.value) * keys,
      static_cast<double>(KvHeadBytes(format, heads.dims, kKvRunTokens)) * length / kKvRunTokens,
      make};
}

// Writes 16 tokens, or seals 64 of a type that is kept by runs, too.
Workload KvWrites(KvFormat format) {
  const int tokens = format.has_runs() ? kKvRunTokens : kKvRecordTokens;
  const auto make = [=]() -> Call {
    testing::Random random(3);
    auto k = std::make_shared<AlignedBuffer<float>>(
        Aligned(random.Floats(static_cast<size_t>(tokens) * kHeadDim)));
    auto kv = std::make_shared<HeadKv>(format, KvDims::Equal(kHeadDim), tokens);
    return [=](const Ops& ops) { kv->Write(ops, *k, tokens); };
  };
  const double values = 2.0 * tokens * kHeadDim;
  return {absl::StrCat("kv_write/", KvFormatName(format)), values, values * 4, make};
}

// A workload on one vector of floats that is reused by every call.
Workload OnFloats(std::string name, int n, double operations_each,
                  std::function<void(const Ops&, float*)> body) {
  const auto make = [=]() -> Call {
    testing::Random random(4);
    auto x = std::make_shared<AlignedBuffer<float>>(Aligned(random.Floats(2 * n, 10.0f)));
    return [=](const Ops& ops) { body(ops, x->data()); };
  };
  return {std::move(name), operations_each * n, 4.0 * n, make};
}

std::vector<Workload> RowWorkloads() {
  return {
      OnFloats("rms_norm/576", kHidden, 4,
               [](const Ops& ops, float* x) {
                 static const auto weight = Aligned(std::vector<float>(kHidden, 1.0f));
                 ops.rms_norm({.x = x, .weight = weight.data(), .n = kHidden, .out = x + kHidden},
                              0, 1);
               }),
      OnFloats("quantize_rows/576", kHidden, 3,
               [](const Ops& ops, float* x) {
                 static constexpr int32_t kEnd = kHidden;
                 static QuantizedBuffer out(1, kHidden, 1);
                 ops.quantize_rows({.x = x, .k = kHidden, .split_ends = &kEnd, .out = out.view()},
                                   0, 1);
               }),
      OnFloats("rope/9x64", kHidden, 3,
               [](const Ops& ops, float* x) {
                 static const RopeTable table(100, model::RopeFrequencies(kHeadDim, 1e5));
                 static constexpr int32_t kPosition = 77;
                 ops.rope({.x = x,
                           .heads = 9,
                           .head_stride = kHeadDim,
                           .dim = kHeadDim,
                           .positions = &kPosition,
                           .table = table.data()},
                          0, 1);
               }),
      OnFloats("silu/1536", 1536, 14,
               [](const Ops& ops, float* x) {
                 static AlignedBuffer<float> out(1536);
                 ops.activate({.gate = x, .up = x + 1536, .n = 1536, .out = out.data()}, 0, 1);
               }),
      OnFloats("add/576", kHidden, 1,
               [](const Ops& ops, float* x) { ops.add(x, x + kHidden, kHidden); }),
      OnFloats("argmax", kVocabulary, 1,
               [](const Ops& ops, float* x) { ops.argmax(x, kVocabulary); }),
      OnFloats("top_n/21", kVocabulary, 1,
               [](const Ops& ops, float* x) {
                 TokenScore top[21];
                 ops.top_n(x, kVocabulary, 21, top);
               }),
      OnFloats("softmax_stats", kVocabulary, 14,
               [](const Ops& ops, float* x) { ops.softmax_stats(x, kVocabulary); }),
      OnFloats("gumbel_argmax", kVocabulary, 50,
               [](const Ops& ops, float* x) {
                 ops.gumbel_argmax(x, kVocabulary, {.key = MakeNoiseKey(1, 3)});
               }),
  };
}

}  // namespace

Workload IntegerProduct(model::GgmlType format, int rows, int columns, int k) {
  return MatMul(format, true, rows, columns, k);
}

std::vector<Workload> Workloads() {
  std::vector<Workload> all;
  for (const model::GgmlType format :
       {model::GgmlType::kQ4_1, model::GgmlType::kQ6_K, model::GgmlType::kQ8_0}) {
    for (const int rows : {1, 4, 32}) {
      all.push_back(MatMul(format, true, rows, kHidden, kHidden));
    }
  }
  all.push_back(MatMul(model::GgmlType::kQ4_1, true, 32, kHidden, 1536));
  all.push_back(MatMul(model::GgmlType::kQ4_1, true, 1, kVocabulary, kHidden));
  all.push_back(MatMul(model::GgmlType::kQ4_1, false, 1, kHidden, kHidden));
  all.push_back(MatMul(model::GgmlType::kQ4_1, false, 32, kHidden, kHidden));
  all.push_back(MatMul(model::GgmlType::kQ8_0, false, 32, kHidden, kHidden));
  for (const int rows : {1, 32}) {
    all.push_back(MatMul(model::GgmlType::kBF16, false, rows, kHidden, kHidden));
  }
  for (const KvType type : kAllKvTypes) {
    const auto format = KvFormat::Both(type);
    all.push_back(Attention(format, 1, 600));
    all.push_back(Attention(format, 32, 600));
    // Of DeepSeek V3, an eighth of its heads.
    const Heads latent{.count = 16, .dims = {.key = 576, .value = 512, .prefix = true}};
    if (!HasRuns(type)) all.push_back(Attention(format, 1, 600, latent));
    all.push_back(KvWrites(format));
  }
  for (Workload& workload : RowWorkloads()) all.push_back(std::move(workload));
  return all;
}

}  // namespace flotilla::kernels
