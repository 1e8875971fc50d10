// Tests Forward on tiny models. It is right, compared with NaiveDecoder, and gives the same bits
// for every way to cut the work.
#include "worker/compute/forward.h"

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "tests/support/tiny_gguf.h"
#include "tests/worker/compute/naive_decoder.h"

namespace flotilla::worker {
namespace {

using testing::TinyModelOptions;

struct Model {
  explicit Model(const TinyModelOptions& options) : bytes(testing::TinyGguf(options)) {
    auto parsed = model::ParseCheckpoint(bytes);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    file = *std::move(parsed);
    auto loaded = model::LoadConfig(*file);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    config = *std::move(loaded);
  }
  std::vector<std::byte> bytes;
  std::shared_ptr<const model::Checkpoint> file;
  model::ModelConfig config;
};

// A Forward and its KV cache. Every block is poisoned.
struct Machine {
  Machine(const Model& model, Recipe recipe, kernels::KvFormat format, kernels::Isa isa,
          int threads)
      : pool(threads) {
    auto loaded = LoadWeights(*model.file, model.config, WholeModel(model.config), pool);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    weights = *std::move(loaded);
    auto made = KvCache::Create(
        {format, static_cast<int>(model.config.layers), static_cast<int>(model.config.kv_heads),
         static_cast<int>(model.config.head_dim)},
        kBlocks);
    EXPECT_TRUE(made.ok()) << made.status();
    cache = *std::move(made);
    for (uint32_t b = 0; b < kBlocks; ++b) cache.Poison(BlockId{b});
    forward.emplace(Forward::Options{.recipe = recipe, .max_rows = 512, .max_positions = 512},
                    model.config, weights, kernels::GetOps(isa), cache, pool);
  }

  static constexpr uint32_t kBlocks = 128;
  ThreadPool pool;
  Weights weights;
  KvCache cache;
  std::optional<Forward> forward;
};

// A sequence, the blocks it owns and the logits seen so far.
struct Sequence {
  std::vector<TokenId> tokens;
  std::vector<int32_t> table;
  size_t length = 0;
  std::vector<std::vector<float>> logits;  // by position
};

Sequence MakeSequence(size_t length, uint32_t vocab, uint64_t seed, int32_t first_block) {
  std::mt19937_64 random(seed);
  Sequence s;
  for (size_t i = 0; i < length; ++i) s.tokens.push_back(static_cast<TokenId>(random() % vocab));
  // Blocks in descending order, so that position and block id never agree.
  for (size_t i = 0; i <= length / 16; ++i) {
    s.table.push_back(first_block + static_cast<int32_t>(length / 16 - i));
  }
  s.logits.resize(length);
  return s;
}

// Runs one step with the next counts[i] tokens of each sequence.
void Step(Machine& machine, std::vector<Sequence*> sequences, const std::vector<size_t>& counts) {
  Batch batch;
  batch.group_count = 1;
  std::vector<std::pair<Sequence*, size_t>> rows;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& s = *sequences[i];
    if (counts[i] == 0) continue;
    batch.items.push_back({.first_position = static_cast<uint32_t>(s.length),
                           .row_begin = static_cast<uint32_t>(batch.tokens.size()),
                           .row_count = static_cast<uint32_t>(counts[i])});
    batch.tables.push_back(s.table);
    for (size_t t = 0; t < counts[i]; ++t, ++s.length) {
      batch.tokens.push_back(s.tokens[s.length]);
      rows.push_back({&s, s.length});
    }
  }
  std::vector<int32_t> logit_rows(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) logit_rows[r] = static_cast<int32_t>(r);
  const auto whole = [](int) { return true; };
  machine.forward->Run(batch, logit_rows, whole, [&](int request, absl::Span<const float> logits) {
    rows[request].first->logits[rows[request].second].assign(logits.begin(), logits.end());
  });
}

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

TEST(ForwardTest, AgreesWithTheNaiveDecoder) {
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
      {.layers = 3, .matrix_type = model::GgmlType::kF32, .embedding_type = model::GgmlType::kF32},
  };
  for (const TinyModelOptions& shape : shapes) {
    const Model model(shape);
    Sequence s = MakeSequence(150, shape.vocab, 7, 1);
    const auto expected = NaiveDecoder(*model.file, model.config).Logits(s.tokens);
    struct Case {
      Recipe recipe;
      kernels::KvFormat format;
      double tolerance;
    };
    for (const Case& c : {Case{Recipe::kFp32, kernels::KvFormat::kF32, 1e-4},
                          Case{Recipe::kAccurate, kernels::KvFormat::kF32, 1e-2},
                          Case{Recipe::kAccurate, kernels::KvFormat::kBf16, 1e-1}}) {
      Machine machine(model, c.recipe, c.format, kernels::DetectIsas().back(), 2);
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

// Runs `s` alone in chunks of `chunk`, and returns the bits of all its logits.
std::vector<std::vector<float>> RunAlone(Machine& machine, const Sequence& s, size_t chunk) {
  Sequence run = s;
  while (run.length < run.tokens.size()) {
    Step(machine, {&run}, {std::min(chunk, run.tokens.size() - run.length)});
  }
  return run.logits;
}

void ExpectSameBits(const std::vector<std::vector<float>>& expected,
                    const std::vector<std::vector<float>>& actual, const std::string& what) {
  for (size_t p = 0; p < expected.size(); ++p) {
    ASSERT_EQ(expected[p].size(), actual[p].size()) << what << ", position " << p;
    ASSERT_EQ(0,
              std::memcmp(expected[p].data(), actual[p].data(), expected[p].size() * sizeof(float)))
        << what << ": logits differ at position " << p;
  }
}

TEST(ForwardTest, BitsDoNotDependOnChunksNeighboursThreadsOrInstructions) {
  const Model model({});
  const auto sequence = [&](size_t length, uint64_t seed, int32_t block) {
    return MakeSequence(length, model.config.vocab, seed, block);
  };
  for (Recipe recipe : {Recipe::kFp32, Recipe::kAccurate}) {
    for (kernels::KvFormat format : {kernels::KvFormat::kF32, kernels::KvFormat::kBf16}) {
      Machine first(model, recipe, format, kernels::Isa::kReference, 1);
      const Sequence s = sequence(300, 11, 1);
      const auto expected = RunAlone(first, s, 300);
      for (kernels::Isa isa : kernels::DetectIsas()) {
        // The others are compared with the slow twin. It runs in one way only.
        if (isa == kernels::Isa::kReference) continue;
        for (int threads : {1, 2, 3}) {
          Machine machine(model, recipe, format, isa, threads);
          const std::string what =
              absl::StrCat(std::string(RecipeName(recipe)), " ",
                           std::string(kernels::GetOps(isa).name), ", ", threads, " threads");
          for (size_t chunk : {1, 7, 64}) {
            ExpectSameBits(expected, RunAlone(machine, s, chunk),
                           absl::StrCat(what, ", chunks of ", chunk));
          }
          // The sequence runs beside others that decode, prefill and start at odd times.
          Sequence run = s, a = sequence(200, 3, 30), b = sequence(250, 4, 60);
          Step(machine, {&a}, {150});
          std::mt19937_64 random(5);
          while (run.length < run.tokens.size()) {
            const auto part = [&](const Sequence& q, size_t most) {
              return std::min<size_t>(random() % (most + 1), q.tokens.size() - q.length);
            };
            Step(machine, {&a, &run, &b}, {part(a, 1), part(run, 40), part(b, 33)});
          }
          ExpectSameBits(expected, run.logits, what + ", among neighbours");
        }
      }
    }
  }
}

}  // namespace
}  // namespace flotilla::worker
