// Runs the real model on the ranks of a group. Every layout gives the answers of one rank, bit
// for bit. In fp32 these are the answers of HF transformers.
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/support/engine_runner.h"
#include "tests/support/test_model.h"

namespace flotilla::testing {
namespace {

using nlohmann::ordered_json;

constexpr TokenId kImEnd = 2;
struct Layout {
  worker::ParallelShape shape;
  worker::ShardBalance balance = worker::ShardBalance::kStep;
};
constexpr Layout kLayouts[] = {
    {{3, 1}}, {{2, 1}}, {{2, 1}, worker::ShardBalance::kBytes}, {{1, 2}}, {{2, 2}}};

// Golden chats with log-probabilities, more than a tile of rows; then sampled requests with two
// sequences each and prompt log-probabilities; then a beam search.
struct Load {
  std::vector<TokenizedRequest> requests;
  std::vector<std::vector<TokenId>> greedy;  // of the first requests
};

Load MakeLoad() {
  Load load;
  for (const ordered_json& line : testing::ReadJsonLines("smollm2/greedy.jsonl")) {
    TokenizedRequest& request = load.requests.emplace_back();
    request.id = {1, load.requests.size()};
    request.prompt = line["prompt_ids"].get<std::vector<TokenId>>();
    request.stop = {{kImEnd}, 64};
    request.sampling.temperature = 0;
    request.logprobs.output_top = 5;
    load.greedy.push_back(line["greedy_ids"].get<std::vector<TokenId>>());
    const std::size_t chats = testing::kSanitized ? 2 : testing::LongTests() ? 16 : 7;
    if (load.greedy.size() == chats) break;
  }
  for (std::uint64_t i = 0; i < 4; ++i) {
    TokenizedRequest& request = load.requests.emplace_back(load.requests[i % load.greedy.size()]);
    request.id = {2, i};
    request.sampling = {.temperature = 0.9f, .top_k = 50, .top_p = 0.95f, .seed = i};
    if (i == 1) request.sampling.repetition_penalty = 1.2f;
    if (i == 2) request.sampling.frequency_penalty = request.sampling.presence_penalty = 0.5f;
    // This request samples from the whole vocabulary, so each rank draws from its own shard.
    if (i == 3) request.sampling = {.temperature = 0.9f, .seed = i};
    request.stop.max_tokens = 24;
    request.sequences = 2;
    request.logprobs.prompt_top = 3;
  }
  TokenizedRequest& beam = load.requests.emplace_back(load.requests[0]);
  beam.id = {3, 0};
  beam.logprobs = {};
  beam.stop.max_tokens = 24;
  beam.sequences = 4;
  beam.beam = BeamOptions{.beams = 4};
  return load;
}

std::vector<Answer> Serve(const Layout& layout, worker::Recipe recipe, const Load& load) {
  EngineRunner::Options options;
  options.rank.shape = layout.shape;
  options.rank.balance = layout.balance;
  options.rank.recipe = recipe;
  options.rank.kv_format =
      recipe == worker::Recipe::kFp32 ? kernels::KvFormat::kF32 : kernels::KvFormat::kBf16;
  options.rank.kv_blocks = 512;
  options.rank.poison_blocks = true;
  EngineRunner runner(testing::OpenRealModel(), options);
  return runner.Run(load.requests);
}

std::string NameOf(const Layout& layout) {
  return absl::StrCat("tp", layout.shape.tensor, "pp", layout.shape.pipeline,
                      layout.balance == worker::ShardBalance::kBytes ? " by bytes" : "");
}

class ParallelTest : public ::testing::TestWithParam<worker::Recipe> {};

TEST_P(ParallelTest, EveryLayoutGivesTheBitsOfOneRank) {
  const Load load = MakeLoad();
  const std::vector<Answer> alone = Serve({}, GetParam(), load);
  for (const Layout& layout : kLayouts) {
    SCOPED_TRACE(NameOf(layout));
    const std::vector<Answer> answers = Serve(layout, GetParam(), load);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      SCOPED_TRACE(absl::StrCat("request ", i));
      ASSERT_TRUE(answers[i].status.ok()) << answers[i].status;
      EXPECT_EQ(answers[i].Bits(), alone[i].Bits());
      ASSERT_EQ(answers[i].sequences.size(), alone[i].sequences.size());
      for (std::size_t b = 0; b < answers[i].sequences.size(); ++b) {
        EXPECT_EQ(answers[i].sequences[b].ids(), alone[i].sequences[b].ids());
        EXPECT_EQ(answers[i].sequences[b].score, alone[i].sequences[b].score);
      }
      EXPECT_EQ(answers[i].prompt_logprobs, alone[i].prompt_logprobs);
      if (GetParam() == worker::Recipe::kFp32 && i < load.greedy.size()) {
        EXPECT_EQ(answers[i].ids(), load.greedy[i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, ParallelTest,
                         ::testing::Values(worker::Recipe::kAccurate, worker::Recipe::kFp32),
                         [](const auto& info) {
                           return std::string(worker::RecipeName(info.param));
                         });

}  // namespace
}  // namespace flotilla::testing
