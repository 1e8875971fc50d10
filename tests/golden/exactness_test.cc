// Answers do not depend on the rest of the batch: 32 requests of 1 to 4,100 prompt tokens, greedy
// and seeded, give the same tokens and the same bits of every log-probability however they are
// batched, chunked, threaded, preempted or computed. The tests work at the Engine seam. All
// combinations on the real model are a long test. A tiny model, and some combinations on the real
// one, run always.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <random>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/engine_runner.h"
#include "tests/support/simulated_gpu.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::testing {
namespace {

constexpr std::uint64_t kShuffleSeed = 20240607;
constexpr std::uint32_t kMaxPrompt = 4100;
// A pool of this many blocks of 16 holds the longest request with its output, and little else. When
// the longest requests come first, at least a third of all requests is preempted.
constexpr std::uint32_t kSmallPool = 265;
constexpr std::uint32_t kOutputTokens = 100;

// Lengths around the boundaries of blocks (16), segments (256) and chunks. Eight are above 2,048.
constexpr std::uint32_t kLengths[] = {1,   2,   15,   16,   17,   31,   32,   33,   47,   48,  63,
                                      64,  65,  100,  127,  128,  129,  255,  256,  257,  300, 511,
                                      512, 513, 2049, 2063, 2064, 2065, 2500, 3001, 4095, 4100};

// One way of running the same requests.
struct Way {
  std::string name;
  kernels::Isa isa = kernels::DetectIsas().back();
  int threads = 2;
  std::uint32_t chunk_tokens = 256;
  std::uint32_t kv_blocks = 4096;
  enum class Order { kAlone, kRandom, kLongestFirst };
  Order order = Order::kRandom;
  int copies = 1;  // of each request at once; most find their prompt in the cache
  worker::Speculation speculation = worker::Speculation::kOff;
  std::uint32_t draft_tokens = 8;
  std::uint32_t draft_layers = 0;
  worker::BackendMaker backend = nullptr;  // null: that of CPUs
};

class Exactness {
 public:
  // Prompts are pieces of the tokens `prompts`.
  Exactness(std::shared_ptr<const model::Checkpoint> file, worker::Recipe recipe,
            kernels::KvFormat format, std::vector<TokenId> prompts, std::uint32_t output_tokens)
      : file_(std::move(file)),
        recipe_(recipe),
        format_(format),
        source_(std::move(prompts)),
        output_tokens_(output_tokens) {}

  void AddRequests(std::uint32_t min_prompt, std::uint32_t max_prompt) {
    for (std::uint32_t length : kLengths) {
      if (length >= min_prompt && length <= max_prompt) AddRequest(length);
    }
  }

  std::size_t requests() const { return requests_.size(); }
  int ways() const { return ways_; }

  // Runs the requests in this way. All other ways must give the same answers.
  void SetExpected(const Way& way) {
    expected_ = Run(way);
    for (const Answer& answer : expected_) {
      EXPECT_TRUE(answer.status.ok()) << answer.status;
      EXPECT_EQ(answer.tokens.size(), output_tokens_);
    }
  }

  void Check(const Way& way) {
    ++ways_;
    const std::vector<Answer> answers = Run(way);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const Answer& expected = expected_[i % expected_.size()];
      EXPECT_EQ(answers[i].ids(), expected.ids()) << way.name << ", request " << i;
      EXPECT_TRUE(answers[i].Bits() == expected.Bits())
          << way.name << ", request " << i << ": bits of log-probabilities differ";
    }
  }

 private:
  void AddRequest(std::uint32_t length) {
    const std::uint64_t i = requests_.size();
    TokenizedRequest request;
    request.id = {7, i};
    const std::size_t start = i * 37 % (source_.size() - length + 1);
    request.prompt.assign(source_.begin() + start, source_.begin() + start + length);
    request.stop.max_tokens = output_tokens_;
    request.logprobs.output_top = static_cast<std::int32_t>(i % 4) * 5;
    if (i % 5 == 0 && length <= 300) request.logprobs.prompt_top = 2;
    // A third of the requests is greedy, a third has plain temperature, a third has top-k and
    // top-p. A quarter of all has penalties.
    request.sampling.seed = 1000 + i;
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
    if (i % 3 == 2) {
      request.sampling.top_k = 40;
      request.sampling.top_p = 0.9f;
    }
    if (i % 4 == 1) {
      request.sampling.repetition_penalty = 1.2f;
      request.sampling.frequency_penalty = 0.3f;
      request.sampling.presence_penalty = 0.4f;
      request.sampling.logit_bias = {{11, -2.0f}, {260, 0.5f}};
      request.sampling.dry_multiplier = 0.5f;
      request.sampling.dry_allowed_length = 1;
    }
    // The end of thoughts comes where it must.
    if (i % 8 == 6) {
      request.sampling.thinking = {.end = 0, .forced = {40, 41}, .budget = output_tokens_ / 3};
    }
    requests_.push_back(std::move(request));
  }

  std::vector<Answer> Run(const Way& way) {
    EngineRunner::Options options;
    options.rank.recipe = recipe_;
    options.rank.kv_format = format_;
    options.rank.isa = way.isa;
    options.rank.threads = way.threads;
    // As many tokens as in blocks of 16.
    options.rank.kv_blocks = format_.has_runs() ? (way.kv_blocks + 3) / 4 : way.kv_blocks;
    options.rank.max_step_tokens = std::max(256u, way.chunk_tokens);
    options.rank.poison_blocks = true;
    options.rank.make_backend = way.backend;
    options.rank.speculation = way.speculation;
    options.rank.draft_tokens = options.core.max_draft_tokens = way.draft_tokens;
    options.rank.draft_layers = way.draft_layers;
    // These n-grams are shorter than the default. So they draft often, and are often wrong.
    options.rank.ngram = {.min_n = 1, .max_n = 4};
    options.core.max_step_tokens = options.rank.max_step_tokens;
    options.core.max_chunk_tokens = way.chunk_tokens;
    // No blocks are reserved for expected output, so requests that have started are preempted as
    // they grow.
    const bool overfill = way.kv_blocks == kSmallPool;
    if (overfill) options.core.watermark_blocks = options.core.expected_output_permille = 0;
    // With these options preemptions and draft tokens do not depend on the speed of the machine.
    options.together = overfill;
    options.frozen_clock = overfill || way.speculation != worker::Speculation::kOff;
    EngineRunner runner(file_, options);
    const std::int64_t start = clock_.NowNs();
    const std::vector<Answer> answers = RunInOrder(runner, way);
    ReportCached(way, answers);
    ReportDraftTokens(way, runner.engine().probe().Read().core.counters);
    std::size_t preempted = 0;
    for (const Answer& answer : answers) preempted += answer.usage.decode_preemptions > 0;
    std::printf("  %-44s %6.2f s, %zu of %zu preempted during decode\n", way.name.c_str(),
                static_cast<double>(clock_.NowNs() - start) * 1e-9, preempted, answers.size());
    if (overfill) {
      ::testing::Test::RecordProperty(absl::StrCat(way.name, ": preempted during decode"),
                                      absl::StrCat(preempted, " of ", answers.size()));
      // With draft tokens some requests end before the pool is full.
      const bool drafts = way.speculation != worker::Speculation::kOff;
      EXPECT_GE(preempted * (drafts ? answers.size() : 3), answers.size()) << way.name;
    }
    return answers;
  }

  void ReportCached(const Way& way, const std::vector<Answer>& answers) const {
    if (way.copies == 1) return;
    std::uint64_t cached = 0, prompt = 0;
    for (const Answer& answer : answers) {
      cached += answer.usage.cached_tokens;
      prompt += answer.usage.prompt_tokens;
    }
    // Half of the prompt tokens can come from the cache, except for one block of each prompt. With
    // sanitizers the prompts are so short that this block is most of them.
    EXPECT_GT(testing::kSanitized ? cached * 8 : cached * 3, prompt) << way.name;
    ::testing::Test::RecordProperty(absl::StrCat(way.name, ": prompt tokens from the prefix cache"),
                                    absl::StrCat(cached, " of ", prompt));
  }

  void ReportDraftTokens(const Way& way, const scheduler::CoreCounters& counters) const {
    EXPECT_EQ(counters.drafted_tokens > 0, way.speculation != worker::Speculation::kOff)
        << way.name;
    if (way.speculation == worker::Speculation::kOff) return;
    // With sanitizers there is time only for a few drafts.
    if (!testing::kSanitized) {
      EXPECT_GT(counters.accepted_tokens, 0u) << way.name;
    }
    EXPECT_LT(counters.accepted_tokens, counters.drafted_tokens) << way.name;
    const std::string right =
        absl::StrCat(counters.accepted_tokens, " of ", counters.drafted_tokens);
    std::printf("    drafts that were right: %s\n", right.c_str());
    ::testing::Test::RecordProperty(absl::StrCat(way.name, ": drafts that were right"), right);
  }

  std::vector<Answer> RunInOrder(EngineRunner& runner, const Way& way) const {
    const Way::Order how = way.order;
    std::vector<Answer> answers(requests_.size() * way.copies);
    if (how == Way::Order::kAlone) {
      for (std::size_t i = 0; i < answers.size(); ++i) answers[i] = runner.Run({requests_[i]})[0];
      return answers;
    }
    std::vector<std::size_t> order(answers.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
    std::mt19937_64 random(kShuffleSeed);
    if (how == Way::Order::kRandom) std::shuffle(order.begin(), order.end(), random);
    std::vector<TokenizedRequest> ordered;
    for (std::size_t i : order) {
      ordered.push_back(requests_[i % requests_.size()]);
      ordered.back().id.counter = i;
    }
    const std::vector<Answer> results = runner.Run(ordered);
    for (std::size_t i = 0; i < order.size(); ++i) answers[order[i]] = results[i];
    return answers;
  }

  const SteadyClock clock_;
  const std::shared_ptr<const model::Checkpoint> file_;
  const worker::Recipe recipe_;
  const kernels::KvFormat format_;
  const std::vector<TokenId> source_;
  const std::uint32_t output_tokens_;
  std::vector<TokenizedRequest> requests_;
  std::vector<Answer> expected_;
  int ways_ = 0;  // compared with expected_
};

// Checks answers with draft tokens: n-grams alone and in a batch, and the draft proposer alone.
void CheckSpeculation(Exactness& exactness, std::uint32_t layers) {
  exactness.Check({.name = "n-grams, alone",
                   .order = Way::Order::kAlone,
                   .speculation = worker::Speculation::kNgram});
  exactness.Check({.name = "n-grams, each twice, chunks of 64",
                   .chunk_tokens = 64,
                   .copies = 2,
                   .speculation = worker::Speculation::kNgram,
                   .draft_tokens = 3});
  exactness.Check({.name = "draft",
                   .order = Way::Order::kAlone,
                   .speculation = worker::Speculation::kDraft,
                   .draft_tokens = 4,
                   .draft_layers = layers});
}

// The instruction paths but that of all other ways, and but the reference, which is far slower, so
// that ReferencePath tests it.
std::vector<kernels::Isa> OtherIsas() {
  std::vector<kernels::Isa> isas;
  for (const kernels::Isa isa : kernels::DetectIsas()) {
    if (isa != kernels::Isa::kReference && isa != Way().isa) isas.push_back(isa);
  }
  return isas;
}

// The same on simulated GPUs, and chunks.
void CheckGpus(Exactness& exactness, testing::GpuMode mode) {
  for (const testing::SimulatedGpus& gpus : testing::AllSimulatedGpus()) {
    if (gpus.mode != mode) continue;
    const auto backend = testing::MakeSimulatedGpus(gpus);
    exactness.Check({.name = gpus.name, .chunk_tokens = 33, .backend = backend});
    exactness.Check({.name = gpus.name + ", n-grams",
                     .speculation = worker::Speculation::kNgram,
                     .backend = backend});
    exactness.Check({.name = gpus.name + ", draft",
                     .order = Way::Order::kAlone,
                     .speculation = worker::Speculation::kDraft,
                     .draft_tokens = 3,
                     .draft_layers = 1,
                     .backend = backend});
  }
}

void CheckAllWays(Exactness& exactness) {
  exactness.SetExpected({.name = "alone", .order = Way::Order::kAlone});
  exactness.Check({.name = "all at once, random order"});
  for (std::uint32_t chunk : {1u, 7u, 16u, 63u, 64u, 65u, 2048u}) {
    exactness.Check({.name = absl::StrCat("chunks of ", chunk), .chunk_tokens = chunk});
  }
  for (int threads : {1, 3}) {
    exactness.Check({.name = absl::StrCat(threads, " threads"), .threads = threads});
  }
  exactness.Check({.name = "each twice", .copies = 2});
  exactness.Check(
      {.name = "small pool", .kv_blocks = kSmallPool, .order = Way::Order::kLongestFirst});
  exactness.Check({.name = "small pool, n-grams",
                   .kv_blocks = kSmallPool,
                   .order = Way::Order::kLongestFirst,
                   .speculation = worker::Speculation::kNgram});
  for (kernels::Isa isa : OtherIsas()) {
    exactness.Check({.name = std::string(kernels::GetOps(isa).name), .isa = isa});
  }
  ::testing::Test::RecordProperty(
      absl::StrCat("ways that gave the bits of ", exactness.requests(), " requests alone"),
      exactness.ways());
}

std::string Name(kernels::KvFormat format) {
  std::string name = kernels::KvFormatName(format);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !absl::ascii_isalnum(c); }, '_');
  return name;
}

std::vector<TokenId> TextTokens() {
  std::ifstream file("tests/data/smollm2/text_gpl3_long.json");
  EXPECT_TRUE(file.is_open());
  return nlohmann::json::parse(file)["ids"];
}

std::vector<TokenId> RandomTokens(std::uint32_t vocab) {
  std::mt19937_64 random(3);
  std::vector<TokenId> tokens(6000);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % vocab);
  return tokens;
}

class TinyExactnessTest : public ::testing::TestWithParam<kernels::KvFormat> {
 protected:
  TinyExactnessTest() : bytes_(testing::TinyGguf({.context_length = 8192})) {
    auto parsed = model::ParseCheckpoint(bytes_);
    EXPECT_TRUE(parsed.ok());
    file_ = *std::move(parsed);
    std::printf("shuffle seed %llu\n", static_cast<unsigned long long>(kShuffleSeed));
  }
  const std::vector<std::byte> bytes_;
  std::shared_ptr<const model::Checkpoint> file_;
};

TEST_P(TinyExactnessTest, SameBitsInEveryWay) {
  Exactness exactness(file_, worker::Recipe::kAccurate, GetParam(), RandomTokens(320),
                      kOutputTokens);
  exactness.AddRequests(1, kMaxPrompt);
  ASSERT_EQ(exactness.requests(), 32u);
  CheckAllWays(exactness);
  CheckSpeculation(exactness, 1);
}

TEST_P(TinyExactnessTest, ReferencePath) {
  for (worker::Recipe recipe : {worker::Recipe::kAccurate, worker::Recipe::kFp32}) {
    Exactness exactness(file_, recipe, GetParam(), RandomTokens(320), 10);
    exactness.AddRequests(1, testing::LongTests() ? kMaxPrompt : 129);
    exactness.SetExpected({.name = "reference", .isa = kernels::Isa::kReference});
    for (kernels::Isa isa : kernels::DetectIsas()) {
      exactness.Check(
          {.name = std::string(kernels::GetOps(isa).name), .isa = isa, .chunk_tokens = 33});
    }
    if (GetParam().has_runs()) continue;  // the deferred backend has none
    const auto deferred = testing::MakeDeferredBackends(kShuffleSeed, 2);
    exactness.Check({.name = "deferred backend", .chunk_tokens = 33, .backend = deferred});
    exactness.Check({.name = "deferred backend, draft",
                     .order = Way::Order::kAlone,
                     .speculation = worker::Speculation::kDraft,
                     .draft_tokens = 3,
                     .draft_layers = 1,
                     .backend = deferred});
    CheckGpus(exactness, testing::GpuMode::kQueues);
  }
}

TEST_P(TinyExactnessTest, KernelsOfGpusOnFibers) {
  if (!testing::LongTests()) GTEST_SKIP() << "set FLOTILLA_LONG=1";
  if (GetParam().has_runs()) GTEST_SKIP() << "GPUs have no such K and V";
  for (worker::Recipe recipe : {worker::Recipe::kAccurate, worker::Recipe::kFp32}) {
    Exactness exactness(file_, recipe, GetParam(), RandomTokens(320), 10);
    exactness.AddRequests(15, 129);
    exactness.SetExpected({.name = "alone", .order = Way::Order::kAlone});
    CheckGpus(exactness, testing::GpuMode::kFibers);
  }
}

using enum kernels::KvType;

INSTANTIATE_TEST_SUITE_P(Kv, TinyExactnessTest,
                         ::testing::Values(kernels::KvFormat::kBf16, kernels::KvFormat::kF32,
                                           kernels::KvFormat{kInt4, kInt4},
                                           kernels::KvFormat{kInt8, kInt2}),
                         [](const auto& info) { return Name(info.param); });

class RealExactnessTest : public ::testing::TestWithParam<kernels::KvFormat> {};

TEST_P(RealExactnessTest, PartOfTheMatrix) {
  const auto file = testing::OpenRealModel();
  ASSERT_NE(file, nullptr);
  Exactness exactness(file, worker::Recipe::kAccurate, GetParam(), TextTokens(), 8);
  exactness.AddRequests(31, 33);
  exactness.AddRequests(257, 257);
  // Once: the tiny model has such prompts in both formats.
  if (!testing::kSanitized && GetParam() == kernels::KvFormat::kBf16) {
    exactness.AddRequests(2049, 2049);
  }
  exactness.SetExpected({.name = "alone", .order = Way::Order::kAlone});
  exactness.Check(
      {.name = "all at once, chunks of 64, 3 threads", .threads = 3, .chunk_tokens = 64});
  exactness.Check({.name = "each twice", .copies = 2});
  for (const kernels::Isa isa : OtherIsas()) {
    exactness.Check({.name = std::string(kernels::GetOps(isa).name), .isa = isa});
  }
}

TEST_P(RealExactnessTest, DraftTokens) {
  const auto file = testing::OpenRealModel();
  ASSERT_NE(file, nullptr);
  Exactness exactness(file, worker::Recipe::kAccurate, GetParam(), TextTokens(),
                      testing::kSanitized ? 8 : 32);
  exactness.AddRequests(15, 33);
  if (!testing::kSanitized) exactness.AddRequests(257, 257);
  exactness.SetExpected({.name = "alone", .order = Way::Order::kAlone});
  CheckSpeculation(exactness, 24);
}

TEST_P(RealExactnessTest, WholeMatrix) {
  if (!testing::LongTests()) GTEST_SKIP() << "set FLOTILLA_LONG=1";
  const auto file = testing::OpenRealModel();
  ASSERT_NE(file, nullptr);
  Exactness exactness(file, worker::Recipe::kAccurate, GetParam(), TextTokens(), kOutputTokens);
  exactness.AddRequests(1, kMaxPrompt);
  ASSERT_EQ(exactness.requests(), 32u);
  CheckAllWays(exactness);
  CheckSpeculation(exactness, 24);

  Exactness reference(file, worker::Recipe::kAccurate, GetParam(), TextTokens(), 4);
  reference.AddRequests(1, 33);
  reference.SetExpected({.name = "reference", .isa = kernels::Isa::kReference});
  reference.Check({.name = "best, alone", .order = Way::Order::kAlone});
}

INSTANTIATE_TEST_SUITE_P(Kv, RealExactnessTest,
                         ::testing::Values(kernels::KvFormat::kBf16, kernels::KvFormat::kF32),
                         [](const auto& info) { return Name(info.param); });

}  // namespace
}  // namespace flotilla::testing
