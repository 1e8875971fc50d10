// A model whose table of token vectors has rows beyond the tokens of its tokenizer, in several
// layouts: these rows count in log-probabilities, as in Hugging Face's transformers, and are never
// drawn, searched or listed, although they often have the largest logit.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "model/load_spec.h"
#include "tests/support/engine_runner.h"
#include "tests/support/tiny_case.h"

namespace flotilla::testing {
namespace {

constexpr TokenId kTokens = 256;
constexpr std::size_t kRows = 296;

// What transformers says of a row.
struct Reference {
  std::vector<double> logprobs;  // of all rows
  std::vector<TokenId> best;     // tokens, the most likely first
};

Reference ReferenceOf(const std::vector<float>& logits) {
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  Reference reference;
  for (const float logit : logits) reference.logprobs.push_back(logit - std::log(sum));
  for (TokenId token = 0; token < kTokens; ++token) reference.best.push_back(token);
  std::stable_sort(reference.best.begin(), reference.best.end(), [&](TokenId a, TokenId b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  return reference;
}

class PaddedRowsTest : public ::testing::TestWithParam<worker::ParallelShape> {
 protected:
  PaddedRowsTest() : tiny_(ReadTinyCase("made/qwen2_padded")) {}

  EngineRunner::Options Options() const {
    EngineRunner::Options options;
    options.rank.recipe = worker::Recipe::kFp32;
    options.rank.kv_format = kernels::KvFormat::kF32;
    options.rank.shape = GetParam();
    options.rank.kv_blocks = 256;
    return options;
  }
  std::vector<TokenId> Prompt() const {
    return {tiny_.ids.begin(), tiny_.ids.begin() + static_cast<std::ptrdiff_t>(tiny_.prompt)};
  }
  TokenizedRequest Request(std::uint64_t id, float temperature) const {
    TokenizedRequest request;
    request.id = {1, id};
    request.prompt = Prompt();
    request.sampling.temperature = temperature;
    request.sampling.seed = id;
    request.stop.max_tokens = 32;
    request.logprobs.output_top = 20;
    return request;
  }

  const TinyCase tiny_;
};

TEST_P(PaddedRowsTest, GreedyTokensAndLogprobsAreThoseOfTransformers) {
  ASSERT_NE(tiny_.file, nullptr);
  EngineRunner runner(tiny_.file, Options());
  const Answer greedy = runner.Run({Request(1, 0)}).front();
  EXPECT_EQ(greedy.ids(), tiny_.greedy);
  // The log-probabilities of a prompt that is the whole case.
  TokenizedRequest whole = Request(2, 0);
  whole.prompt = tiny_.ids;
  whole.stop.max_tokens = 1;
  whole.logprobs.prompt_top = 20;
  const Answer answer = runner.Run({whole}).front();
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  ASSERT_EQ(answer.prompt_logprobs.size() + 1, tiny_.ids.size());
  int padded = 0;
  for (std::size_t i = 0; i < tiny_.positions.size(); ++i) {
    const std::size_t at = tiny_.positions[i];
    ASSERT_EQ(tiny_.logits[i].size(), kRows);
    const Reference reference = ReferenceOf(tiny_.logits[i]);
    const auto best = std::ranges::max_element(reference.logprobs) - reference.logprobs.begin();
    padded += best >= kTokens;
    const bool last = at + 1 == tiny_.ids.size();
    const TokenId token = last ? answer.tokens.front().sampled.token : tiny_.ids[at + 1];
    const float logprob = last ? answer.tokens.front().sampled.logprob : answer.prompt_logprobs[at];
    EXPECT_NEAR(logprob, reference.logprobs[static_cast<std::size_t>(token)], 1e-4) << at;
    const auto& top = last ? answer.tokens.front().sampled.top : answer.prompt_top[at];
    ASSERT_EQ(top.size(), 20u);
    for (std::size_t t = 0; t < top.size(); ++t) {
      const auto expected = static_cast<std::size_t>(reference.best[t]);
      EXPECT_LT(top[t].token, kTokens);
      EXPECT_NEAR(top[t].logprob, reference.logprobs[expected], 1e-4) << at << ", " << t;
    }
  }
  EXPECT_GT(padded, 0) << "no row without a token has the largest logit";
}

TEST_P(PaddedRowsTest, NothingElseChoosesThem) {
  ASSERT_NE(tiny_.file, nullptr);
  std::vector<TokenizedRequest> requests;
  for (std::uint64_t id = 1; id <= 12; ++id) {
    TokenizedRequest& request = requests.emplace_back(Request(id, 1.5f));
    if (id == 2) request.sampling.top_k = 40;
    if (id == 3) request.sampling.top_p = 0.9f;
    if (id == 4) request.sampling.min_p = 0.1f;
    if (id == 5) request.sampling.typical_p = 0.8f;
    if (id == 6) request.sampling.repetition_penalty = 1.3f;
    if (id == 7) request.sampling.logit_bias = {{kTokens - 1, 1.0f}};
    if (id == 8) {
      request.sequences = 4;
      request.beam = BeamOptions{.beams = 4};
    }
  }
  for (const auto speculation : {worker::Speculation::kOff, worker::Speculation::kDraft}) {
    EngineRunner::Options options = Options();
    if (GetParam().pipeline > 1 && speculation == worker::Speculation::kDraft) continue;
    options.rank.speculation = speculation;
    options.core.max_draft_tokens = options.rank.draft_tokens;
    options.frozen_clock = true;
    EngineRunner runner(tiny_.file, options);
    for (const Answer& answer : runner.Run(requests)) {
      ASSERT_TRUE(answer.status.ok()) << answer.status;
      for (const Answer::Sequence& sequence : answer.sequences) {
        EXPECT_EQ(sequence.tokens.size(), 32u);
        for (const TokenEvent& event : sequence.tokens) {
          EXPECT_LT(event.sampled.token, kTokens);
          for (const TopLogprob& top : event.sampled.top) EXPECT_LT(top.token, kTokens);
        }
      }
    }
  }
}

TEST_P(PaddedRowsTest, RequestsCannotNameThem) {
  ASSERT_NE(tiny_.file, nullptr);
  EngineRunner runner(tiny_.file, Options());
  TokenizedRequest biased = Request(1, 0), prompt = Request(2, 0);
  biased.sampling.logit_bias = {{kTokens, 1.0f}};
  prompt.prompt.back() = kTokens;
  for (const Answer& answer : runner.Run({biased, prompt})) {
    EXPECT_TRUE(absl::IsInvalidArgument(answer.status)) << answer.status;
    EXPECT_NE(answer.status.message().find("vocabulary of 256"), std::string::npos)
        << answer.status;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, PaddedRowsTest,
                         ::testing::Values(worker::ParallelShape{1, 1}, worker::ParallelShape{2, 1},
                                           worker::ParallelShape{2, 2}),
                         [](const auto& info) {
                           return absl::StrCat("tp", info.param.tensor, "pp", info.param.pipeline);
                         });

}  // namespace
}  // namespace flotilla::testing
