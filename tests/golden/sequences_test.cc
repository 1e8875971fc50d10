// Requests with several sequences on the real model: beam search against HF transformers
// (tests/data/smollm2/beam.jsonl), and parallel sampling against requests of one sequence with the
// derived seeds. All requests run in one batch at the Engine seam: with a large pool, and with a
// pool so small that requests are preempted.
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/engine_runner.h"
#include "tests/support/requests.h"
#include "tests/support/test_model.h"

namespace flotilla::testing {
namespace {

using nlohmann::ordered_json;

constexpr TokenId kImEnd = 2;

struct BeamCase {
  TokenizedRequest request;
  std::vector<std::vector<TokenId>> sequences;
  std::vector<double> scores;
};

BeamOptions::EarlyStopping EarlyStopping(const ordered_json& value) {
  if (value == true) return BeamOptions::EarlyStopping::kTrue;
  if (value == "never") return BeamOptions::EarlyStopping::kNever;
  EXPECT_EQ(value, false);
  return BeamOptions::EarlyStopping::kFalse;
}

std::vector<BeamCase> ReadBeams() {
  std::vector<BeamCase> cases;
  for (const ordered_json& line : testing::ReadJsonLines("smollm2/beam.jsonl")) {
    BeamCase& beam = cases.emplace_back();
    beam.request.id = {1, cases.size()};
    beam.request.prompt = line["prompt_ids"].get<std::vector<TokenId>>();
    beam.request.stop = {{kImEnd}, line["max_new_tokens"].get<std::uint32_t>()};
    beam.request.sequences = line["num_beams"].get<std::uint32_t>();
    beam.request.beam = BeamOptions{.beams = beam.request.sequences,
                                    .length_penalty = line["length_penalty"].get<float>(),
                                    .early_stopping = EarlyStopping(line["early_stopping"])};
    beam.sequences = line["sequences"].get<std::vector<std::vector<TokenId>>>();
    beam.scores = line["scores"].get<std::vector<double>>();
  }
  EXPECT_EQ(cases.size(), 5u);
  return cases;
}

TokenizedRequest Sampled(std::uint64_t id, std::vector<TokenId> prompt, std::uint64_t seed) {
  TokenizedRequest request = TestRequest({1, id}, std::move(prompt), 40);
  request.sampling = {.temperature = 0.8f, .top_p = 0.95f, .seed = seed};
  request.stop.stop_tokens = {kImEnd};
  return request;
}

// Runs every beam search, and eight other requests so that no search runs alone.
void ExpectBeamsEqualReference(EngineRunner& runner) {
  const std::vector<BeamCase> beams = ReadBeams();
  std::vector<TokenizedRequest> requests;
  for (const BeamCase& beam : beams) requests.push_back(beam.request);
  for (std::uint64_t i = 0; i < 8; ++i) {
    requests.push_back(Sampled(100 + i, beams[i % beams.size()].request.prompt, i));
  }
  const std::vector<Answer> answers = runner.Run(requests);
  for (std::size_t b = 0; b < beams.size(); ++b) {
    ASSERT_TRUE(answers[b].status.ok()) << answers[b].status;
    ASSERT_EQ(answers[b].sequences.size(), beams[b].sequences.size());
    for (std::size_t i = 0; i < beams[b].sequences.size(); ++i) {
      EXPECT_EQ(answers[b].sequences[i].ids(), beams[b].sequences[i])
          << "case " << b << " beam " << i;
      EXPECT_NEAR(answers[b].sequences[i].score, beams[b].scores[i], 1e-3);
    }
  }
}

EngineRunner::Options Options(worker::Recipe recipe, kernels::KvFormat format,
                              std::uint32_t blocks) {
  EngineRunner::Options options;
  options.rank.recipe = recipe;
  options.rank.kv_format = format;
  options.rank.kv_blocks = blocks;
  options.rank.poison_blocks = true;
  if (blocks < 100) {  // no room is kept for outputs, so requests are preempted
    options.core.watermark_blocks = 0;
    options.core.expected_output_permille = 0;
  }
  return options;
}

TEST(SequencesTest, BeamSearchIsTheReference) {
  const auto file = testing::OpenRealModel();
  ASSERT_NE(file, nullptr);
  EngineRunner runner(file, Options(worker::Recipe::kFp32, kernels::KvFormat::kF32, 1024));
  ExpectBeamsEqualReference(runner);
  EXPECT_EQ(runner.engine().Load().blocks_used, 0u);
}

TEST(SequencesTest, BeamsThatArePreemptedFindTheSame) {
  const auto file = testing::OpenRealModel();
  ASSERT_NE(file, nullptr);
  EngineRunner runner(file, Options(worker::Recipe::kFp32, kernels::KvFormat::kF32, 40));
  ExpectBeamsEqualReference(runner);
  EXPECT_GT(runner.engine().probe().Read().core.counters.preemptions, 0u);
}

// Choice i of a request is what a request with SequenceSeed(seed, i) gives, to the
// last bit, whatever else runs.
TEST(SequencesTest, SequencesEqualRequestsOfTheirSeeds) {
  const auto file = testing::OpenRealModel();
  ASSERT_NE(file, nullptr);
  const std::vector<BeamCase> sources = ReadBeams();
  std::vector<TokenizedRequest> wide, single;
  for (std::uint32_t n = 2; n <= 5; ++n) {
    TokenizedRequest request = Sampled(n, sources[n - 1].request.prompt, 1000 + n);
    // The prompts end inside a block, at the end of a block, and after the first token of a block.
    request.prompt.resize(request.prompt.size() / 16 * 16 + (n == 5 ? 7 : n % 3));
    request.logprobs.output_top = 3;
    request.sequences = n;
    wide.push_back(request);
    for (std::uint32_t i = 0; i < n; ++i) {
      request.id = {2, n * 10 + i};
      request.sequences = 1;
      request.sampling.seed = SequenceSeed(1000 + n, SequenceIndex(i));
      single.push_back(request);
    }
  }
  for (const std::uint32_t blocks : {1024u, 24u}) {
    EngineRunner runner(file, Options(worker::Recipe::kAccurate, kernels::KvFormat::kBf16, blocks));
    const std::vector<Answer> together = runner.Run(wide);
    const std::vector<Answer> apart = runner.Run(single);
    std::size_t at = 0;
    for (const Answer& answer : together) {
      ASSERT_TRUE(answer.status.ok()) << answer.status;
      std::uint32_t tokens = 0;
      for (const Answer::Sequence& sequence : answer.sequences) {
        EXPECT_EQ(sequence.tokens.size(), apart[at].tokens.size());
        for (std::size_t t = 0; t < sequence.tokens.size(); ++t) {
          EXPECT_EQ(sequence.tokens[t].sampled, apart[at].tokens[t].sampled);
        }
        EXPECT_EQ(sequence.reason, apart[at].reason);
        tokens += static_cast<std::uint32_t>(sequence.tokens.size());
        ++at;
      }
      EXPECT_EQ(answer.usage.output_tokens, tokens);
    }
    const scheduler::CoreCounters counters = runner.engine().probe().Read().core.counters;
    EXPECT_GT(counters.forks, 0u);
    EXPECT_EQ(counters.preemptions > 0, blocks < 100) << blocks << " blocks";
  }
}

}  // namespace
}  // namespace flotilla::testing
