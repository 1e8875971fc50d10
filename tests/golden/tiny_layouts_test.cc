// Tiny models of each architecture on the ranks of a group. Every layout, and every batch, gives
// the bits of one rank with one request. The models have vocabularies of 256 tokens, a fourth of a
// chunk, so all ranks of a stage but one own no token. What computes does not matter either: the
// deferred backend, which shares only the reference kernels with that of CPUs, gives these bits
// too.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/engine_runner.h"
#include "tests/support/tiny_case.h"

namespace flotilla::testing {
namespace {

constexpr std::uint64_t kSeed = 7;  // of the deferred backend's delays
constexpr worker::ParallelShape kShapes[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}};

// Greedy ones, sampled ones from the whole vocabulary and from its top, each with the
// log-probabilities of prompt and output.
std::vector<TokenizedRequest> Requests(const TinyCase& tiny) {
  std::vector<TokenizedRequest> requests;
  for (std::uint64_t i = 0; i < 3; ++i) {
    TokenizedRequest& request = requests.emplace_back();
    request.id = {1, i};
    request.prompt.assign(tiny.ids.begin() + static_cast<std::ptrdiff_t>(i), tiny.ids.end());
    request.stop.max_tokens = 24;
    request.sampling.temperature = i == 0 ? 0.0f : 0.9f;
    request.sampling.seed = i;
    if (i == 2) request.sampling.top_k = 20;
    request.logprobs = {.output_top = 20, .prompt_top = 20};
  }
  return requests;
}

class TinyLayoutsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(TinyLayoutsTest, EveryLayoutAndBatchGivesTheSameBits) {
  const TinyCase tiny = ReadTinyCase(GetParam());
  ASSERT_NE(tiny.file, nullptr);
  const std::vector<TokenizedRequest> requests = Requests(tiny);
  for (const worker::Recipe recipe : {worker::Recipe::kAccurate, worker::Recipe::kFp32}) {
    std::vector<std::vector<std::uint32_t>> alone;
    for (const bool deferred : {false, true})
      for (const worker::ParallelShape& shape : kShapes) {
        SCOPED_TRACE(absl::StrCat(std::string(worker::RecipeName(recipe)), " tp", shape.tensor,
                                  "pp", shape.pipeline, deferred ? ", deferred" : ""));
        EngineRunner::Options options;
        if (deferred) options.rank.make_backend = MakeDeferredBackends(kSeed, shape.pipeline + 1);
        options.rank.recipe = recipe;
        options.rank.shape = shape;
        options.rank.kv_blocks = 64;
        options.rank.poison_blocks = true;
        EngineRunner runner(tiny.file, options);
        if (alone.empty()) {
          for (const TokenizedRequest& request : requests) {
            alone.push_back(runner.Run({request}).front().Bits());
          }
        }
        const std::vector<Answer> answers = runner.Run(requests);
        for (std::size_t i = 0; i < answers.size(); ++i) {
          EXPECT_TRUE(answers[i].status.ok()) << answers[i].status;
          EXPECT_EQ(answers[i].tokens.size(), 24u);
          EXPECT_EQ(answers[i].Bits(), alone[i]) << "request " << i;
        }
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, TinyLayoutsTest, ::testing::Values("qwen3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace flotilla::testing
