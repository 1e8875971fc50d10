// Tests the decoder on tiny models. It is right, compared with NaiveDecoder, and gives the same
// bits for every way to cut the work.
#include "worker/compute/decoder/decoder.h"

#include <random>
#include <span>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/load_spec.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/tiny_gguf.h"
#include "tests/worker/compute/decoder_machine.h"
#include "tests/worker/compute/naive_decoder.h"

namespace flotilla::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::TinyModelOptions;

const uint32_t kDecoderVocab = TinyModelOptions{}.vocab;
constexpr uint64_t kSeed = 3;  // of the deferred backend's delays

struct DecoderModel {
  explicit DecoderModel(const TinyModelOptions& options) : bytes(testing::TinyGguf(options)) {
    auto parsed = model::ParseCheckpoint(bytes);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    file = *std::move(parsed);
    auto loaded = model::LoadSpec(*file);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    spec = *std::move(loaded);
  }
  std::vector<std::byte> bytes;
  std::shared_ptr<const model::Checkpoint> file;
  model::ModelSpec spec;
};

double MaxDifference(const std::vector<std::vector<double>>& expected,
                     const std::vector<std::vector<float>>& actual) {
  double worst = 0;
  for (size_t p = 0; p < expected.size(); ++p) {
    for (size_t v = 0; v < expected[p].size(); ++v) {
      const double difference = std::abs(expected[p][v] - actual[p][v]);
      if (!(difference <= worst)) worst = difference;  // NaN is worst
    }
  }
  return worst;
}

TEST(DecoderTest, AgreesWithTheNaiveDecoder) {
  const TinyModelOptions shapes[] = {
      {},
      {.heads = 3, .kv_heads = 1, .head_dim = 64, .tied_embedding = false},
      {.hidden = 96,
       .heads = 6,
       .kv_heads = 3,
       .head_dim = 16,
       .ffn = 160,
       .vocab = 333,
       .matrix_type = model::GgmlType::kQ8_0,
       .embedding_type = model::GgmlType::kF16},
      {.head_dim = 40},
      {.heads = 6, .kv_heads = 2, .head_dim = 36, .value_dim = 80},
      {.heads = 4,
       .kv_heads = 1,
       .head_dim = 48,
       .value_dim = 24,
       .matrix_type = model::GgmlType::kF32},
      {.layers = 3, .matrix_type = model::GgmlType::kF32, .embedding_type = model::GgmlType::kF32},
      {.hidden = 256,
       .head_dim = 64,
       .ffn = 256,
       .matrix_type = model::GgmlType::kQ6_K,
       .embedding_type = model::GgmlType::kQ6_K},
      // As a Q4_K_M file has them: V and down are of another type than what they stand beside.
      {.hidden = 256,
       .head_dim = 64,
       .ffn = 512,
       .matrix_type = model::GgmlType::kQ4_K,
       .other_type = model::GgmlType::kQ6_K,
       .embedding_type = model::GgmlType::kQ6_K},
      {.hidden = 256,
       .head_dim = 64,
       .ffn = 256,
       .matrix_type = model::GgmlType::kQ3_K,
       .other_type = model::GgmlType::kQ2_K,
       .embedding_type = model::GgmlType::kQ5_K},
      {.hidden = 256,
       .head_dim = 64,
       .ffn = 256,
       .matrix_type = model::GgmlType::kIQ4_XS,
       .other_type = model::GgmlType::kNVFP4,
       .embedding_type = model::GgmlType::kMXFP4},
      {.matrix_type = model::GgmlType::kIQ4_NL, .other_type = model::GgmlType::kMXFP4},
  };
  for (const TinyModelOptions& shape : shapes) {
    const DecoderModel model(shape);
    Sequence s = MakeSequence(150, shape.vocab, 7, 1);
    const auto expected = NaiveDecoder(*model.file, model.spec).Logits(s.tokens);
    struct Case {
      Recipe recipe;
      kernels::KvFormat format;
      double tolerance;
    };
    for (const Case& c : {Case{Recipe::kFp32, kernels::KvFormat::kF32, 1e-4},
                          Case{Recipe::kAccurate, kernels::KvFormat::kF32, 1e-2},
                          Case{Recipe::kAccurate, kernels::KvFormat::kBf16, 1e-1}}) {
      Machine machine(*model.file, model.spec, c.recipe, c.format, kernels::DetectIsas().back(), 2);
      Sequence run = s;
      Step(machine, {&run}, {100});
      while (run.length < run.tokens.size()) Step(machine, {&run}, {1});
      const double worst = MaxDifference(expected, run.logits);
      std::printf("%s %s: max |difference| of logits %.2g\n", RecipeName(c.recipe).data(),
                  c.format == kernels::KvFormat::kF32 ? "fp32" : "bf16", worst);
      EXPECT_LE(worst, c.tolerance);
    }
  }
}

// A spec may say more than the decoder computes. It refuses the rest by name.
TEST(DecoderTest, RefusesPartsThatItDoesNotHave) {
  const DecoderModel model({});
  const auto refusal = [&](auto change) {
    model::ModelSpec spec = model.spec;
    change(spec);
    const absl::Status status = Decoder::Check(spec);
    return absl::IsUnimplemented(status) ? std::string(status.message()) : "not refused";
  };
  const auto of_layers = [&](auto change) {
    return refusal([&](model::ModelSpec& spec) {
      for (model::LayerSpec& layer : spec.layers) change(layer);
    });
  };
  EXPECT_TRUE(Decoder::Check(model.spec).ok());
  EXPECT_THAT(
      of_layers([](auto& layer) { layer.moe = model::MoeSpec{.expert = {.gated = false}}; }),
      HasSubstr("experts without a gate"));
  EXPECT_THAT(refusal([](auto& spec) { spec.layers.back().ffn.width = 32; }),
              HasSubstr("different sizes"));
  EXPECT_THAT(refusal([](auto& spec) { spec.layers.back().attention.value_dim = 16; }),
              HasSubstr("different sizes"));
  EXPECT_THAT(of_layers([](auto& layer) {
                layer.attention.head_dim = 40;
                layer.attention.head_norms = model::HeadNorms::kAllHeads;
              }),
              HasSubstr("one norm of heads whose size is no multiple of 16"));
}

// A scale that is no number is found when the model is loaded, also in a part of a matrix that the
// decoder joins of several, in vectors, and in token vectors that are decoded when they are needed.
TEST(DecoderTest, NamesTheTensorWithAScaleThatIsNoNumber) {
  DecoderModel model({.tied_embedding = false,
                      .matrix_type = model::GgmlType::kQ8_0,
                      .norm_type = model::GgmlType::kQ8_0});
  const auto load = [&] {
    const SteadyClock clock;
    const ModelShard shard = WholeModel(model.spec);
    const std::unique_ptr<Backend> backend = MakeCpuBackend({.recipe = Recipe::kAccurate,
                                                             .isa = kernels::DetectIsas().back(),
                                                             .threads = 1,
                                                             .max_rows = 16,
                                                             .max_positions = 16,
                                                             .clock = &clock});
    return Decoder::Load(*model.file, model.spec, {&shard, 1}, {}, 0, *backend).status();
  };
  EXPECT_TRUE(load().ok()) << load();
  for (const std::string name :
       {"blk.1.attn_q.weight", "blk.1.attn_k.weight", "blk.1.attn_v.weight",
        "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight", "output.weight",
        "token_embd.weight", "blk.0.attn_norm.weight", "output_norm.weight"}) {
    const std::span<const std::byte> data = model.file->FindTensor(name)->data;
    std::byte* const scale = model.bytes.data() + (data.data() - model.bytes.data());
    const std::byte kept = std::exchange(scale[1], std::byte{0x7c});  // fp16, infinite or a NaN
    const absl::Status refused = load();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(refused.message()), StartsWith(name));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(": a scale is "));
    scale[1] = kept;
  }
}

// Runs `s` beside others that decode, prefill and start at odd times.
std::vector<std::vector<float>> RunAmongNeighbours(Machine& machine, const Sequence& s) {
  Sequence run = s, a = MakeSequence(200, kDecoderVocab, 3, 30),
           b = MakeSequence(250, kDecoderVocab, 4, 60);
  Step(machine, {&a}, {150});
  std::mt19937_64 random(5);
  while (run.length < run.tokens.size()) {
    const auto part = [&](const Sequence& q, size_t most) {
      return std::min<size_t>(random() % (most + 1), q.tokens.size() - q.length);
    };
    Step(machine, {&a, &run, &b}, {part(a, 1), part(run, 40), part(b, 33)});
  }
  return run.logits;
}

TEST(DecoderTest, BitsDoNotDependOnChunksNeighboursThreadsOrInstructions) {
  const DecoderModel model({});
  for (Recipe recipe : {Recipe::kFp32, Recipe::kAccurate}) {
    for (kernels::KvFormat format : {kernels::KvFormat::kF32, kernels::KvFormat::kBf16}) {
      Machine first(*model.file, model.spec, recipe, format, kernels::Isa::kReference, 1);
      const Sequence s = MakeSequence(300, kDecoderVocab, 11, 1);
      const auto expected = RunAlone(first, s, 300);
      for (kernels::Isa isa : kernels::DetectIsas()) {
        // The others are compared with the slow twin. It runs in one way only.
        if (isa == kernels::Isa::kReference) continue;
        for (int threads : {1, 2, 3}) {
          Machine machine(*model.file, model.spec, recipe, format, isa, threads);
          const std::string what =
              absl::StrCat(std::string(RecipeName(recipe)), " ",
                           std::string(kernels::GetOps(isa).name), ", ", threads, " threads");
          for (size_t chunk : {1, 7, 64}) {
            ExpectSameBits(expected, RunAlone(machine, s, chunk),
                           absl::StrCat(what, ", chunks of ", chunk));
          }
          ExpectSameBits(expected, RunAmongNeighbours(machine, s), what + ", among neighbours");
        }
      }
    }
  }
}

void ExpectTheSameBitsOfBackends(const DecoderModel& model) {
  const Sequence s = MakeSequence(90, kDecoderVocab, 12, 1);
  for (Recipe recipe : {Recipe::kFp32, Recipe::kAccurate}) {
    for (kernels::KvFormat format : {kernels::KvFormat::kF32, kernels::KvFormat::kBf16}) {
      const std::string what = absl::StrCat(std::string(RecipeName(recipe)), ", KV type ",
                                            format == kernels::KvFormat::kF32 ? "fp32" : "bf16");
      Machine cpu(*model.file, model.spec, recipe, format, kernels::DetectIsas().back(), 2);
      Machine deferred(*model.file, model.spec, recipe, format, kernels::Isa::kReference, 1,
                       testing::MakeDeferredBackends(kSeed, 1));
      const auto expected = RunAlone(cpu, s, 90);
      for (size_t chunk : {1, 7, 90}) {
        ExpectSameBits(expected, RunAlone(deferred, s, chunk),
                       absl::StrCat(what, ", chunks of ", chunk));
      }
      ExpectSameBits(expected, RunAmongNeighbours(deferred, s), what + ", among neighbours");
    }
  }
}

TEST(DecoderTest, BitsDoNotDependOnTheBackend) {
  ExpectTheSameBitsOfBackends(DecoderModel({.head_dim = 16}));
  ExpectTheSameBitsOfBackends(DecoderModel({.head_dim = 40}));
  ExpectTheSameBitsOfBackends(DecoderModel({.heads = 6, .head_dim = 36, .value_dim = 80}));
  ExpectTheSameBitsOfBackends(DecoderModel({.hidden = 256,
                                            .head_dim = 64,
                                            .ffn = 512,
                                            .matrix_type = model::GgmlType::kQ4_K,
                                            .other_type = model::GgmlType::kQ6_K,
                                            .embedding_type = model::GgmlType::kQ4_K}));
  ExpectTheSameBitsOfBackends(DecoderModel({.hidden = 256,
                                            .heads = 3,
                                            .kv_heads = 1,
                                            .head_dim = 256,
                                            .ffn = 256,
                                            .matrix_type = model::GgmlType::kQ5_K,
                                            .other_type = model::GgmlType::kQ3_K}));
  ExpectTheSameBitsOfBackends(DecoderModel({.hidden = 256,
                                            .head_dim = 64,
                                            .ffn = 256,
                                            .matrix_type = model::GgmlType::kIQ4_XS,
                                            .other_type = model::GgmlType::kNVFP4,
                                            .embedding_type = model::GgmlType::kQ2_K}));
  ExpectTheSameBitsOfBackends(DecoderModel({.ffn = 96, .experts = 6}));
  ExpectTheSameBitsOfBackends(
      DecoderModel({.ffn = 96, .experts = 6, .matrix_type = model::GgmlType::kMXFP4}));
}

}  // namespace
}  // namespace flotilla::worker
