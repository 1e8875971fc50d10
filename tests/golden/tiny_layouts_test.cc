// Tiny models on the ranks of a group: one of each architecture, and one with weights in
// super-blocks. Every layout, and every batch, gives the bits of one rank with one request. The
// models have vocabularies of less than a chunk, so all ranks of a stage but one own no token. What
// computes does not matter either: the deferred backend, which shares only the reference kernels
// with that of CPUs, gives these bits too.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/engine_runner.h"
#include "tests/support/tiny_case.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::testing {
namespace {

constexpr std::uint64_t kSeed = 7;  // of the deferred backend's delays
constexpr worker::ParallelShape kShapes[] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}};

// Greedy ones, sampled ones from the whole vocabulary and from its top, each with the
// log-probabilities of prompt and output.
std::vector<TokenizedRequest> Requests(const std::vector<TokenId>& ids) {
  std::vector<TokenizedRequest> requests;
  for (std::uint64_t i = 0; i < 3; ++i) {
    TokenizedRequest& request = requests.emplace_back();
    request.id = {1, i};
    request.prompt.assign(ids.begin() + static_cast<std::ptrdiff_t>(i), ids.end());
    request.stop.max_tokens = 24;
    request.sampling.temperature = i == 0 ? 0.0f : 0.9f;
    request.sampling.seed = i;
    if (i == 2) request.sampling.top_k = 20;
    request.logprobs = {.output_top = 20, .prompt_top = 20};
  }
  return requests;
}

void ExpectTheSameBits(const std::shared_ptr<const model::Checkpoint>& file,
                       const std::vector<TokenizedRequest>& requests) {
  for (const worker::Recipe recipe : {worker::Recipe::kAccurate, worker::Recipe::kFp32}) {
    std::vector<std::vector<std::uint32_t>> alone;
    for (const bool deferred : {false, true}) {
      for (const worker::ParallelShape& shape : kShapes) {
        SCOPED_TRACE(absl::StrCat(std::string(worker::RecipeName(recipe)), " tp", shape.tensor,
                                  "pp", shape.pipeline, deferred ? ", deferred" : ""));
        EngineRunner::Options options;
        if (deferred) options.rank.make_backend = MakeDeferredBackends(kSeed, shape.pipeline + 1);
        options.rank.recipe = recipe;
        options.rank.shape = shape;
        options.rank.kv_blocks = 64;
        options.rank.poison_blocks = true;
        EngineRunner runner(file, options);
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
}

class TinyLayoutsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(TinyLayoutsTest, EveryLayoutAndBatchGivesTheSameBits) {
  const TinyCase tiny = ReadTinyCase(GetParam());
  ASSERT_NE(tiny.file, nullptr);
  ExpectTheSameBits(tiny.file, Requests(tiny.ids));
}

INSTANTIATE_TEST_SUITE_P(Tiny, TinyLayoutsTest, ::testing::Values("qwen3"),
                         [](const auto& info) { return std::string(info.param); });

// A rank of two begins inside a super-block of 256: with one of two splits of 128 of the attention
// output, and with three of six of the FFN.
TEST(TinyLayouts, ShardsEndInsideSuperBlocks) {
  const std::vector<std::byte> bytes = TinyGguf({.hidden = 256,
                                                 .head_dim = 64,
                                                 .ffn = 768,
                                                 .matrix_type = model::GgmlType::kQ6_K,
                                                 .embedding_type = model::GgmlType::kQ6_K});
  auto file = model::ParseCheckpoint(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<TokenId> ids;
  for (TokenId id = 3; id < 35; ++id) ids.push_back(id * 7 % 300);
  ExpectTheSameBits(*std::move(file), Requests(ids));
}

}  // namespace
}  // namespace flotilla::testing
