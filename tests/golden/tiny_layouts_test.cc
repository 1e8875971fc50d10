// Tiny models on the ranks of a group: one of each architecture, and one with weights in
// super-blocks. Every layout, batch, chunk and instruction path, preemptions, swaps and hits of the
// prefix cache give the bits of one rank with one request. The
// models have vocabularies of less than a chunk, so all ranks of a stage but one own no token. What
// computes does not matter either: the deferred backend, which shares only the reference kernels
// with that of CPUs, gives these bits too.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "model/load_spec.h"
#include "model/quantize_at_load.h"
#include "tests/kernels/cuda/host_ops.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/engine_runner.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/fused_folder.h"
#include "tests/support/hf_folder.h"
#include "tests/support/quantised_folder.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/simulated_gpu.h"
#include "tests/support/tiny_case.h"
#include "tests/support/tiny_gguf.h"
#include "tests/support/with_kv_scales.h"
#include "worker/compute/cpu/cpu_backend.h"
#include "worker/device/simulated_device.h"

namespace flotilla::testing {
namespace {

constexpr std::uint64_t kSeed = 7;  // of the deferred backend's delays
constexpr worker::ParallelShape kShapes[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}};

constexpr std::size_t kRequests = 17;
constexpr std::uint32_t kOutputTokens = 12;

// Greedy ones, sampled ones from the whole vocabulary and from its top, each with the
// log-probabilities of prompt and output. `runs`: blocks hold 64 tokens, and not 16.
std::vector<TokenizedRequest> Requests(const std::vector<TokenId>& ids, bool runs = false) {
  std::vector<TokenizedRequest> requests;
  for (std::uint64_t i = 0; i < kRequests; ++i) {
    TokenizedRequest& request = requests.emplace_back();
    request.id = {1, i};
    // Short prompts, which all need a second block at about the same time, and long ones.
    const auto first = ids.begin() + static_cast<std::ptrdiff_t>(i);
    const bool is_short = i < 12 && i != 1 && i != 3;
    request.prompt.assign(first, is_short ? first + (runs ? 60 : 10) : ids.end());
    request.stop.max_tokens = kOutputTokens;
    request.sampling.temperature = i % 3 == 0 ? 0.0f : 0.9f;
    request.sampling.seed = i;
    if (i % 3 == 2) request.sampling.top_k = 20;
    request.logprobs.output_top = 20;
    // Prompts whose log-probabilities are wanted are never taken from the cache.
    if (i % 2 == 0) request.logprobs.prompt_top = 20;
  }
  return requests;
}

// The same, and a beam search and a request of two sequences among the first four.
std::vector<TokenizedRequest> RequestsOfSequences(const std::vector<TokenId>& ids) {
  std::vector<TokenizedRequest> requests = Requests(ids);
  TokenizedRequest beams = requests[2], pair = requests[4];
  beams.id = {1, kRequests};
  beams.sampling = {.temperature = 0};
  beams.logprobs = {};
  beams.sequences = 3;
  beams.beam = BeamOptions{.beams = 3};
  pair.id = {1, kRequests + 1};
  pair.sequences = 2;
  requests.insert(requests.begin() + 2, {beams, pair});
  for (TokenizedRequest& request : requests) request.stop.max_tokens = 16;
  return requests;
}

// How a model is run, and what its answers must not depend on.
struct Way {
  std::string name;
  worker::ParallelShape shape;
  bool deferred = false;
  worker::BackendMaker gpus = nullptr;  // simulated ones; null: none
  kernels::Isa isa = kernels::DetectIsas().back();
  std::uint32_t chunk = 256;
  bool small_pool = false;  // most requests are preempted
  bool tier = false;        // and swapped
  worker::Speculation speculation = worker::Speculation::kOff;
  std::shared_ptr<FakeNccl> nccl = nullptr;  // ranks load themselves on simulated GPUs, and find it
  std::uint64_t seed = 0;                    // of the GPUs that find it
  bool fibers = false;  // the GPUs run their kernels, and no loops in place of them

  // How many of so many requests run. The reference kernels and fibers are slow.
  std::size_t Requests(std::size_t all) const {
    return deferred || fibers || isa == kernels::Isa::kReference ? 4 : all;
  }
};

int SplitsOf(const model::ModelSpec& spec) {
  return static_cast<int>(std::min(spec.attention_splits(), spec.ffn_splits()));
}

std::vector<Way> Ways(const model::ModelSpec& spec, worker::Recipe recipe) {
  std::vector<Way> ways;
  for (const worker::ParallelShape& shape : kShapes) {
    ways.push_back(
        {.name = absl::StrCat("tp", shape.tensor, "pp", shape.pipeline), .shape = shape});
  }
  if (SplitsOf(spec) >= 3) {
    ways.push_back({.name = "tp3", .shape = {3, 1}});
  }
  // The reference kernels, which the deferred backend has, are slow, so each recipe has one way.
  // Long runs have one more, without that backend.
  if (recipe == worker::Recipe::kFp32) {
    ways.push_back({.name = "deferred", .shape = {1, 1}, .deferred = true});
  } else if (recipe == worker::Recipe::kAccurate) {  // it does not follow W8A8's activations
    ways.push_back({.name = "deferred, tp2pp2", .shape = {2, 2}, .deferred = true});
  }
  for (const kernels::Isa isa : kernels::DetectIsas()) {
    if (isa == kernels::Isa::kReference && !LongTests()) continue;
    ways.push_back(
        {.name = std::string(kernels::GetOps(isa).name), .shape = {1, 1}, .isa = isa, .chunk = 7});
  }
  ways.push_back({.name = "small pool", .shape = {1, 1}, .small_pool = true});
  ways.push_back({.name = "small pool, tp2", .shape = {2, 1}, .small_pool = true});
  // tiers_test swaps a model without windows.
  if (spec.kv_groups.size() > 1 || spec.kv_groups[0].window > 0) {
    ways.push_back({.name = "tier, tp2", .shape = {2, 1}, .small_pool = true, .tier = true});
  }
  return ways;
}

// The ways of models that GPUs compute, each with an order of queues of its own.
std::vector<Way> GpuWays(const model::ModelSpec& spec, std::uint64_t seed, GpuMode mode) {
  const auto gpus = [&] { return MakeSimulatedGpus(seed++, mode); };
  const auto nccl = [&] {
    return std::make_shared<FakeNccl>(FakeNcclOptions{.seed = seed++, .most_looks = 2});
  };
  // The odd ranks of a stage are those of the CPU.
  const auto mixed = [&]() -> worker::BackendMaker {
    return [gpu = gpus()](const worker::BackendOptions& options) {
      return options.tensor_rank % 2 == 0 ? gpu(options) : worker::MakeCpuBackend(options);
    };
  };
  std::vector<Way> ways = {
      {.name = "GPU", .shape = {1, 1}, .gpus = gpus()},
      {.name = "GPU, chunks of 7", .shape = {1, 1}, .gpus = gpus(), .chunk = 7},
      {.name = "GPU, small pool", .shape = {1, 1}, .gpus = gpus(), .small_pool = true},
      {.name = "GPU, tier", .shape = {1, 1}, .gpus = gpus(), .small_pool = true, .tier = true},
      {.name = "GPUs, tp2", .shape = {2, 1}, .gpus = gpus()},
      {.name = "GPUs, pp2", .shape = {1, 2}, .gpus = gpus()},
      {.name = "GPUs, tp2pp2", .shape = {2, 2}, .gpus = gpus()},
      {.name = "GPUs over NCCL, tp2", .shape = {2, 1}, .nccl = nccl()},
      {.name = "GPUs over NCCL, chunks of 7", .shape = {2, 1}, .chunk = 7, .nccl = nccl()},
      {.name = "GPUs over NCCL, small pool", .shape = {2, 1}, .small_pool = true, .nccl = nccl()},
      {.name = "GPUs over NCCL, pp2", .shape = {1, 2}, .nccl = nccl()},
      {.name = "GPUs over NCCL, tp2pp2", .shape = {2, 2}, .nccl = nccl()},
      {.name = "GPU and CPU, tp2", .shape = {2, 1}, .gpus = mixed()},
      {.name = "GPU and CPU, small pool", .shape = {2, 1}, .gpus = mixed(), .small_pool = true}};
  if (SplitsOf(spec) >= 3) {
    ways.push_back({.name = "GPUs, tp3", .shape = {3, 1}, .gpus = gpus()});
    ways.push_back({.name = "GPUs over NCCL, tp3", .shape = {3, 1}, .nccl = nccl()});
  }
  for (Way& way : ways) {
    way.seed = seed;
    way.fibers = mode == GpuMode::kFibers;
  }
  return ways;
}

// A small pool has room for the longest request, and not for all that run.
std::uint32_t PoolOf(const model::ModelSpec& spec, const Way& way, bool runs) {
  std::uint32_t blocks = 0;
  for (const model::KvGroupSpec& group : spec.kv_groups) {
    const bool alone = spec.kv_groups.size() == 1 && group.window == 0;
    blocks += !way.small_pool ? 256 : way.fibers ? 8 : !alone ? 9 : runs ? 20 : 30;
  }
  return blocks;
}

using MaybeKvFormats = std::optional<worker::KvFormats>;  // none: that of the recipe

EngineRunner::Options OptionsFor(const model::ModelSpec& spec, const Way& way,
                                 worker::Recipe recipe, const MaybeKvFormats& kv) {
  EngineRunner::Options options;
  options.rank.max_context = spec.served_context;
  options.rank.make_backend = way.gpus;
  if (way.deferred) {
    options.rank.make_backend = MakeDeferredBackends(kSeed, way.shape.pipeline + 1);
  }
  if (way.nccl != nullptr) {
    options.rank.device = {.kind = worker::DeviceChoice::Kind::kCuda};
    const auto gpus = std::make_shared<std::atomic<std::uint64_t>>(1000 * way.seed);
    const auto* const ops = way.fibers ? &kernels::cuda::SimulatedOps() : &kernels::cuda::HostOps();
    options.rank.make_device = [gpus, ops](const worker::DeviceChoice&,
                                           int) -> absl::StatusOr<std::unique_ptr<worker::Device>> {
      worker::SimulatedDeviceOptions device{.goes_on = true};
      device.seed = (*gpus)++;
      device.id = absl::StrCat(device.seed);
      device.ops = ops;
      return std::make_unique<worker::SimulatedDevice>(device);
    };
    options.rank.open_nccl = [nccl = way.nccl] { return nccl->Open(); };
  }
  options.rank.recipe = recipe;
  options.rank.kv_format = kv.value_or(recipe == worker::Recipe::kFp32 ? kernels::KvFormat::kF32
                                                                       : kernels::KvFormat::kBf16);
  options.rank.isa = way.isa;
  options.rank.shape = way.shape;
  options.rank.kv_blocks = PoolOf(spec, way, kv.has_value() && kv->has_runs());
  options.rank.poison_blocks = true;
  options.core.max_chunk_tokens = way.chunk;
  if (way.small_pool) {
    options.core.watermark_blocks = options.core.expected_output_permille = 0;
    options.together = options.frozen_clock = true;
  }
  if (way.speculation != worker::Speculation::kOff) {
    options.rank.speculation = way.speculation;
    options.core.max_draft_tokens = options.rank.draft_tokens;
    options.frozen_clock = true;  // drafts do not depend on measured times
  }
  if (way.tier) {
    options.rank.tiers.host_blocks = 400;
    options.frozen_clock = false;
    options.fixed_costs = true;  // copies are compared with the time to compute
  }
  return options;
}

// Runs the requests alone, and then all together in every way, each twice: the second time most of
// their prompts are in the prefix cache.
void ExpectTheSameBits(
    const std::shared_ptr<const model::Checkpoint>& file,
    const std::vector<TokenizedRequest>& requests, std::uint32_t served = 0,
    const MaybeKvFormats& kv = std::nullopt,
    const std::function<std::vector<Way>(const model::ModelSpec&, worker::Recipe)>& ways = Ways,
    const std::vector<worker::Recipe>& recipes = {worker::Recipe::kAccurate,
                                                  worker::Recipe::kFp32}) {
  const auto spec = model::LoadSpec(*file, served);
  ASSERT_TRUE(spec.ok()) << spec.status();
  for (const worker::Recipe recipe : recipes) {
    std::vector<std::vector<std::uint32_t>> alone;
    {
      EngineRunner runner(file, OptionsFor(*spec, {.name = "alone", .shape = {1, 1}}, recipe, kv));
      for (const TokenizedRequest& request : requests) {
        alone.push_back(runner.Run({request}).front().Bits());
      }
    }
    for (const Way& way : ways(*spec, recipe)) {
      // The deferred backend keeps nothing by runs.
      if (way.deferred && kv.has_value() && kv->has_runs()) continue;
      SCOPED_TRACE(absl::StrCat(std::string(worker::RecipeName(recipe)), ", ", way.name));
      EngineRunner runner(file, OptionsFor(*spec, way, recipe, kv));
      std::uint64_t cached = 0, preempted = 0;
      for (const std::uint64_t round : {1, 2}) {
        std::vector<TokenizedRequest> batch(
            requests.begin(),
            requests.begin() + static_cast<std::ptrdiff_t>(way.Requests(requests.size())));
        for (TokenizedRequest& request : batch) request.id.incarnation = round;
        const std::vector<Answer> answers = runner.Run(batch);
        for (std::size_t i = 0; i < answers.size(); ++i) {
          EXPECT_TRUE(answers[i].status.ok()) << answers[i].status;
          EXPECT_EQ(answers[i].tokens.size(), batch[i].stop.max_tokens);
          EXPECT_EQ(answers[i].Bits(), alone[i]) << "request " << i << ", round " << round;
          if (round == 2) cached += answers[i].usage.cached_tokens;
          preempted += answers[i].usage.preemptions > 0 ? 1 : 0;
        }
      }
      if (way.nccl != nullptr) {
        EXPECT_GT(way.nccl->messages(), 0);
      }
      if (way.tier) {
        const scheduler::CoreCounters counters = runner.engine().probe().Read().core.counters;
        EXPECT_GT(counters.swapped, 0u);
        // Of one group that keeps a window few blocks are worth it.
        if (way.gpus != nullptr || spec->kv_groups.size() > 1) {
          EXPECT_GT(counters.blocks_in, 0u);
        }
      }
      if (way.speculation != worker::Speculation::kOff) {
        const scheduler::CoreCounters counters = runner.engine().probe().Read().core.counters;
        EXPECT_GT(counters.accepted_tokens, 0u);
        EXPECT_LT(counters.accepted_tokens, counters.drafted_tokens);
      }
      if (way.small_pool) {
        EXPECT_GT(preempted, 0u);
      } else {
        EXPECT_GT(cached, 0u);
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

void ExpectTheSameBitsOf(const TinyModelOptions& options) {
  const std::vector<std::byte> bytes = TinyGguf(options);
  auto file = model::ParseCheckpoint(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<TokenId> ids;
  for (TokenId id = 3; id < 35; ++id) ids.push_back(id * 7 % 300);
  ExpectTheSameBits(*std::move(file), Requests(ids));
}

class TinyLayoutsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(TinyLayoutsTest, EveryLayoutAndBatchGivesTheSameBits) {
  const TinyCase tiny = ReadTinyCase(GetParam());
  ASSERT_NE(tiny.file, nullptr);
  ExpectTheSameBits(tiny.file, Requests(tiny.ids), tiny.served);
}

INSTANTIATE_TEST_SUITE_P(Tiny, TinyLayoutsTest, ::testing::ValuesIn(AllTinyCases()), TinyCaseName);

// Windows, sinks, experts and latents with beams, requests of several sequences and draft tokens.
class SequencesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(SequencesTest, BeamsAndDraftsGiveTheSameBits) {
  const TinyCase tiny = ReadTinyCase(GetParam());
  ASSERT_NE(tiny.file, nullptr);
  ExpectTheSameBits(
      tiny.file, RequestsOfSequences(tiny.ids), tiny.served, std::nullopt,
      [](const model::ModelSpec& spec, worker::Recipe recipe) {
        std::vector<Way> ways = Ways(spec, recipe);
        if (!LongTests()) {
          std::erase_if(ways,
                        [](const Way& way) { return !way.small_pool && way.name != "tp2pp2"; });
        }
        for (const bool small : {false, true}) {
          ways.push_back({.name = absl::StrCat("n-grams", small ? ", small pool" : ""),
                          .shape = {1, 1},
                          .small_pool = small,
                          .speculation = worker::Speculation::kNgram});
        }
        return ways;
      });
}

INSTANTIATE_TEST_SUITE_P(Tiny, SequencesTest,
                         ::testing::Values("tiny/gemma3_text", "tiny/gpt_oss", "tiny/mixtral",
                                           "tiny/deepseek_v2_mla"),
                         TinyCaseName);

// What a server answers is what transformers computed: the log-probabilities of a prompt in fp32.
class ServedLogprobsTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ServedLogprobsTest, AreThoseOfTransformers) {
  const TinyCase tiny = ReadTinyCase(GetParam());
  ASSERT_NE(tiny.file, nullptr);
  const auto spec = model::LoadSpec(*tiny.file, tiny.served);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EngineRunner runner(tiny.file, OptionsFor(*spec, {.name = "alone", .shape = {1, 1}},
                                            worker::Recipe::kFp32, std::nullopt));
  TokenizedRequest request;
  request.id = {1, 1};
  request.prompt = tiny.ids;
  request.stop.max_tokens = 1;
  request.logprobs.prompt_top = 1;
  const Answer answer = runner.Run({request}).front();
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  ASSERT_EQ(answer.prompt_logprobs.size() + 1, tiny.ids.size());
  for (std::size_t i = 0; i < tiny.positions.size(); ++i) {
    const std::size_t at = tiny.positions[i];
    if (at + 1 == tiny.ids.size()) continue;
    double sum = 0;
    for (const float logit : tiny.logits[i]) sum += std::exp(double{logit});
    const double logit = tiny.logits[i][static_cast<std::size_t>(tiny.ids[at + 1])];
    EXPECT_NEAR(answer.prompt_logprobs[at], logit - std::log(sum), 1e-4) << at;
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, ServedLogprobsTest, ::testing::ValuesIn(AllTinyCases()),
                         TinyCaseName);

// Models that GPUs compute, on simulated ones and beside CPUs, with seeds of the order in which the
// queues of a GPU go on: with FLOTILLA_LONG=1 five, and else two, so that each is there twice.
constexpr const char* kGpuModels[] = {"made/llama", "tiny/qwen3", "tiny/qwen2", "tiny/llama3_rope",
                                      "tiny/smollm3_nope"};
class GpuLayoutsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuLayoutsTest, SimulatedGpusGiveTheBitsOfTheCpu) {
  const TinyCase tiny = ReadTinyCase(GetParam());
  ASSERT_NE(tiny.file, nullptr);
  const auto first =
      static_cast<std::uint64_t>(std::ranges::find(kGpuModels, GetParam()) - kGpuModels);
  for (std::uint64_t i = 0; i < (LongTests() ? 5 : 2); ++i) {
    const std::uint64_t seed = 1 + (first + i) % 5;
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    ExpectTheSameBits(tiny.file, RequestsOfSequences(tiny.ids), tiny.served, std::nullopt,
                      [&](const model::ModelSpec& spec, worker::Recipe) {
                        return GpuWays(spec, 1000 * seed, GpuMode::kQueues);
                      });
    if (HasFailure()) return;
  }
}

// The kernels themselves, as fibers: two ranks, preempted and swapped, and in long runs all ways.
TEST(TinyLayouts, KernelsOnFibersGiveTheBitsOfTheCpu) {
  const TinyCase tiny = ReadTinyCase("made/llama");
  ASSERT_NE(tiny.file, nullptr);
  ExpectTheSameBits(tiny.file, RequestsOfSequences(tiny.ids), tiny.served, std::nullopt,
                    [](const model::ModelSpec& spec, worker::Recipe recipe) {
                      std::vector<Way> ways = GpuWays(spec, /*seed=*/1, GpuMode::kFibers);
                      if (LongTests()) return ways;
                      std::erase_if(ways, [&](const Way& way) {
                        return way.name !=
                               (recipe == worker::Recipe::kFp32 ? "GPUs, tp2" : "GPU, tier");
                      });
                      return ways;
                    });
}

INSTANTIATE_TEST_SUITE_P(Tiny, GpuLayoutsTest, ::testing::ValuesIn(kGpuModels),
                         [](const auto& info) {
                           return std::string(info.param).substr(std::string("tiny/").size());
                         });

// A rank of two begins inside a super-block of 256: with one of two splits of 128 of the attention
// output, and with three of six of the FFN.
TEST(TinyLayouts, ShardsEndInsideSuperBlocks) {
  ExpectTheSameBitsOf({.hidden = 256,
                       .head_dim = 64,
                       .ffn = 768,
                       .matrix_type = model::GgmlType::kQ6_K,
                       .embedding_type = model::GgmlType::kQ6_K});
}

// The same of K-quants, whose windows have one scale, beside other types in one product.
TEST(TinyLayouts, ShardsEndInsideWindowsOfKQuants) {
  using enum model::GgmlType;
  ExpectTheSameBitsOf({.hidden = 256,
                       .heads = 12,
                       .kv_heads = 3,
                       .head_dim = 64,
                       .ffn = 768,
                       .matrix_type = kQ4_K,
                       .other_type = kQ6_K,
                       .embedding_type = kQ6_K});
  // Two heads of 192 begin inside a window.
  ExpectTheSameBitsOf({.hidden = 256,
                       .heads = 4,
                       .kv_heads = 4,
                       .head_dim = 192,
                       .ffn = 256,
                       .matrix_type = kQ5_K,
                       .other_type = kQ3_K,
                       .embedding_type = kQ3_K});
  ExpectTheSameBitsOf({.hidden = 256,
                       .heads = 3,
                       .kv_heads = 1,
                       .head_dim = 256,
                       .ffn = 768,
                       .matrix_type = kQ2_K,
                       .other_type = kQ5_K,
                       .embedding_type = kQ5_K});
}

// And of tables of codes: their factors are those of 32, and NVFP4 has blocks of 64.
TEST(TinyLayouts, ShardsEndInsideBlocksOfTables) {
  using enum model::GgmlType;
  ExpectTheSameBitsOf({.hidden = 256,
                       .heads = 4,
                       .kv_heads = 4,
                       .head_dim = 192,
                       .ffn = 256,
                       .matrix_type = kIQ4_XS,
                       .other_type = kNVFP4,
                       .embedding_type = kMXFP4});
  // Three heads of 32: their splits end inside blocks.
  ExpectTheSameBitsOf({.hidden = 192,
                       .heads = 6,
                       .kv_heads = 3,
                       .head_dim = 32,
                       .ffn = 320,
                       .matrix_type = kNVFP4,
                       .other_type = kIQ4_NL,
                       .embedding_type = kNVFP4});
}

// Heads whose size is no multiple of 16, also with longer V, and splits that begin anywhere.
TEST(TinyLayouts, HeadsMayHaveAnySize) {
  ExpectTheSameBitsOf({.head_dim = 40});
  ExpectTheSameBitsOf({.heads = 6, .kv_heads = 3, .head_dim = 36, .value_dim = 80});
}

// Experts of a quantised folder.
TEST(TinyLayouts, ExpertsMayBeThoseOfAQuantisedFolder) {
  const ScratchDirectory folder;
  WriteMxfp4Folder(folder.path(), /*quantised=*/true);
  auto file = model::OpenCheckpoint(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  ExpectTheSameBits(*std::move(file), Requests(ReadTinyCase("tiny/gpt_oss").ids));
}

// K and V of each type, and of two: swapped, shared, sharded and preempted as any others. The
// latent of DeepSeek, which is K and V, and windows, too.
class KvTypesTest : public ::testing::TestWithParam<const char*> {};

TEST_P(KvTypesTest, EveryLayoutAndBatchGivesTheSameBits) {
  using enum kernels::KvType;
  const TinyCase tiny = ReadTinyCase(GetParam());
  ASSERT_NE(tiny.file, nullptr);
  // fp8 takes those scales that the file has.
  std::vector<model::KvScales> scales(model::LoadSpec(*tiny.file)->layers.size());
  for (std::size_t layer = 1; layer < scales.size(); layer += 2) scales[layer] = {0.01f, 0.003f};
  const auto file = std::make_shared<WithKvScales>(tiny.file, scales);
  if (GetParam() == std::string("made/llama")) {
    ASSERT_GE(SplitsOf(*model::LoadSpec(*tiny.file)), 3);  // so it has TP=3, too
  }
  worker::KvFormats mixed = kernels::KvFormat{kInt8, kInt8};
  mixed.some = {{{0, 1}, {kBf16, kBf16}}, {{2, 3}, {kFp8E5m2, kFp8E5m2}}};
  // The latent's V is its K.
  const bool latent = model::LoadSpec(*tiny.file)->attention().latent.has_value();
  std::vector<worker::KvFormats> all = {kernels::KvFormat{kF16, kF16},
                                        kernels::KvFormat{kInt8, kInt8},
                                        kernels::KvFormat{kFp8, kFp8}, mixed};
  if (!latent) {
    mixed.some.push_back({{3, 4}, {kInt8, kInt2}});
    all.insert(all.end(),
               {kernels::KvFormat{kInt8, kInt4}, kernels::KvFormat{kInt4, kInt2}, mixed});
  }
  for (const worker::KvFormats& kv : all) {
    SCOPED_TRACE(kv.Name());
    ExpectTheSameBits(file, Requests(tiny.ids, kv.has_runs()), tiny.served, kv);
  }
}

TEST(TinyLayouts, Fp8TakesTheScalesOfTheFile) {
  const TinyCase tiny = ReadTinyCase("made/llama");
  ASSERT_NE(tiny.file, nullptr);
  const std::vector<TokenizedRequest> requests = {Requests(tiny.ids).front()};
  const auto bits = [&](kernels::KvType type, const model::KvScales& scales) {
    const auto file = std::make_shared<WithKvScales>(
        tiny.file, std::vector<model::KvScales>{model::KvScales(), scales});
    EngineRunner runner(file, OptionsFor(*model::LoadSpec(*file), {.name = "", .shape = {1, 1}},
                                         worker::Recipe::kFp32, kernels::KvFormat::Both(type)));
    return runner.Run(requests).front().Bits();
  };
  using enum kernels::KvType;
  const std::vector<std::vector<std::uint32_t>> each = {
      bits(kFp8, {}), bits(kFp8, {0.01f, 0}), bits(kFp8, {0, 0.01f}), bits(kFp8, {0.01f, 0.01f}),
      bits(kFp8, {0.013f, 0.01f})};
  for (std::size_t i = 0; i < each.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(each[i], each[j]) << i << ", " << j;
  }
  EXPECT_EQ(bits(kInt8, {}), bits(kInt8, {0.01f, 0.01f}));
}

INSTANTIATE_TEST_SUITE_P(Tiny, KvTypesTest,
                         ::testing::Values("made/llama", "tiny/gemma2", "tiny/deepseek_v2_mla"),
                         [](const auto& info) {
                           return std::string(info.param).substr(std::string("tiny/").size());
                         });

class QuantisedLayoutsTest : public ::testing::TestWithParam<QuantisedLayers> {};

// Dense models and experts of three splits, whose shards end inside groups.
TEST_P(QuantisedLayoutsTest, EveryLayoutAndBatchGivesTheSameBits) {
  std::vector<std::string> cases = {"made/llama", "made/mixtral"};
  // These have kinds that others have, too, so a short run skips their experts.
  const bool known = GetParam().name == "gptq_2bit" || GetParam().name == "bitsandbytes_4bit";
  if (known && !LongTests()) cases.pop_back();
  // Heads' parts of one matrix, along both axes; one method says it for all.
  if (GetParam().name == "fp8") cases.push_back("made/deepseek_v2_mla");
  for (const std::string& from : cases) {
    SCOPED_TRACE(from);
    const ScratchDirectory made, folder;
    WriteQuantisedFolder(TinyCaseFolder(from, made.path()), GetParam(), /*seed=*/3, folder.path());
    auto file = model::OpenCheckpoint(folder.path());
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_GE(SplitsOf(*model::LoadSpec(**file)), 3);  // so there is TP=3
    ExpectTheSameBits(*std::move(file), Requests(ReadTinyCase("tiny/llama").ids));
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, QuantisedLayoutsTest, ::testing::ValuesIn(AllQuantisedLayers()),
                         [](const auto& info) { return info.param.name; });

class W8A8LayoutsTest : public ::testing::TestWithParam<QuantisedLayers> {};

TEST_P(W8A8LayoutsTest, EveryLayoutAndBatchGivesTheSameBitsUnderFast) {
  for (const char* from : {"made/llama", "made/mixtral"}) {
    SCOPED_TRACE(from);
    const ScratchDirectory made, folder;
    WriteQuantisedFolder(TinyCaseFolder(from, made.path()), GetParam(), /*seed=*/3, folder.path());
    auto file = model::OpenCheckpoint(folder.path());
    ASSERT_TRUE(file.ok()) << file.status();
    ExpectTheSameBits(*std::move(file), Requests(ReadTinyCase("tiny/llama").ids), 0, std::nullopt,
                      Ways, {worker::Recipe::kFast});
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, W8A8LayoutsTest, ::testing::ValuesIn(W8A8Layers()),
                         [](const auto& info) { return info.param.name; });

// Groups of 128 weights, of which the shards of the FFN end inside one.
TEST(TinyLayouts, MatricesMayBeQuantizedAtLoad) {
  const TinyCase tiny = ReadTinyCase("made/llama");
  ASSERT_NE(tiny.file, nullptr);
  using enum model::LoadQuantization;
  for (const auto method : {kInt8, kInt4, kNf4, kFp8}) {
    auto file = model::QuantizeAtLoad(tiny.file, method);
    ASSERT_TRUE(file.ok()) << file.status();
    ExpectTheSameBits(*std::move(file), Requests(tiny.ids));
  }
}

// Experts whose gate and up are one tensor, quantised at load.
TEST(TinyLayouts, ExpertsMayBeOneTensor) {
  const TinyCase tiny = ReadTinyCase("tiny/mixtral");
  const ScratchDirectory folder;
  WriteFusedFolder("tests/data/tiny/mixtral", folder.path());
  auto file = model::OpenCheckpoint(folder.path());
  ASSERT_TRUE(file.ok()) << file.status();
  auto quantised = model::QuantizeAtLoad(*std::move(file), model::LoadQuantization::kInt8);
  ASSERT_TRUE(quantised.ok()) << quantised.status();
  ExpectTheSameBits(*std::move(quantised), Requests(tiny.ids), tiny.served, std::nullopt, Ways,
                    {worker::Recipe::kAccurate});
}

// Each type of GGUF files, in a dense model and in one with experts, of three splits.
class WeightTypesTest : public ::testing::TestWithParam<std::pair<model::GgmlType, bool>> {};

TEST_P(WeightTypesTest, EveryLayoutAndBatchGivesTheSameBits) {
  const auto [type, experts] = GetParam();
  const uint32_t block = model::InfoOf(type).block_elements;
  TinyModelOptions options = {.hidden = 192,
                              .heads = 6,
                              .kv_heads = 3,
                              .head_dim = 32,
                              .ffn = 320,
                              .matrix_type = type,
                              .embedding_type = type};
  if (block == 256) {
    options.hidden = 256;
    options.heads = 12;
    options.head_dim = 64;
    options.ffn = 768;
  }
  if (experts) {
    options.experts = 5;
    options.ffn = block == 256 ? 256 : block == 64 ? 192 : 160;  // and so a short split
  }
  ExpectTheSameBitsOf(options);
}

// With FLOTILLA_LONG=1 all of them, and else those that no other test here has.
std::vector<std::pair<model::GgmlType, bool>> WeightTypes() {
  using enum model::GgmlType;
  if (!LongTests()) {
    return {{kF16, false}, {kQ5_0, false}, {kQ5_1, false}, {kQ4_0, true}, {kQ8_0, true}};
  }
  std::vector<std::pair<model::GgmlType, bool>> all;
  for (const auto type : {kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ2_K, kQ3_K, kQ4_K,
                          kQ5_K, kQ6_K, kIQ4_NL, kIQ4_XS, kMXFP4, kNVFP4}) {
    for (const bool experts : {false, true}) all.emplace_back(type, experts);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Gguf, WeightTypesTest, ::testing::ValuesIn(WeightTypes()),
                         [](const auto& info) {
                           return std::string(model::GgmlTypeName(info.param.first)) +
                                  (info.param.second ? "_experts" : "");
                         });

}  // namespace
}  // namespace flotilla::testing
