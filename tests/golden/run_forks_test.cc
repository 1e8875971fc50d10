// Several sequences of one request where K and V are kept by runs: each is, to the last bit, what
// a request of its own gives, wherever in a run it begins, and beams find the same in any batch.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/checkpoint.h"
#include "tests/support/engine_runner.h"
#include "tests/support/requests.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::testing {
namespace {

using enum kernels::KvType;

class RunForksTest : public ::testing::TestWithParam<kernels::KvFormat> {
 protected:
  RunForksTest() : bytes_(TinyGguf({.context_length = 1024})) {
    auto parsed = model::ParseCheckpoint(bytes_);
    EXPECT_TRUE(parsed.ok());
    file_ = *std::move(parsed);
  }

  // A small pool has no room for all that run.
  EngineRunner::Options Options(std::uint32_t blocks) const {
    EngineRunner::Options options;
    options.rank.kv_format = GetParam();
    options.rank.kv_blocks = blocks;
    options.rank.poison_blocks = true;
    options.core.max_chunk_tokens = 100;
    if (blocks < 100) {
      options.core.watermark_blocks = options.core.expected_output_permille = 0;
      options.together = options.frozen_clock = true;
    }
    return options;
  }

  static TokenizedRequest Request(std::uint64_t id, std::uint32_t prompt, std::uint32_t outputs) {
    std::vector<TokenId> ids;
    for (std::uint32_t i = 0; i < prompt; ++i) {
      ids.push_back(static_cast<TokenId>((id * 31 + i * 7 + i * i) % 300));
    }
    TokenizedRequest request = TestRequest({1, id}, std::move(ids), outputs);
    request.sampling = {.temperature = 0.8f, .seed = 100 + id};
    request.logprobs.output_top = 2;
    return request;
  }

  const std::vector<std::byte> bytes_;
  std::shared_ptr<const model::Checkpoint> file_;
};

TEST_P(RunForksTest, SequencesEqualRequestsOfTheirSeeds) {
  constexpr std::uint32_t kWide = 3;
  std::vector<TokenizedRequest> wide, single;
  for (std::uint32_t prompt = 63; prompt <= 130; ++prompt) {
    TokenizedRequest request = Request(prompt, prompt, 9);
    request.sequences = kWide;
    wide.push_back(request);
    for (std::uint32_t i = 0; i < kWide; ++i) {
      request.id = {2, prompt * 10 + i};
      request.sequences = 1;
      request.sampling.seed = SequenceSeed(100 + prompt, SequenceIndex(i));
      single.push_back(request);
    }
  }
  const std::vector<Answer> apart = EngineRunner(file_, Options(4096)).Run(single);
  for (const std::uint32_t blocks : {4096u, 40u}) {
    SCOPED_TRACE(blocks);
    EngineRunner runner(file_, Options(blocks));
    const std::vector<Answer> together = runner.Run(wide);
    for (std::size_t at = 0; at < together.size(); ++at) {
      ASSERT_TRUE(together[at].status.ok()) << together[at].status;
      ASSERT_EQ(together[at].sequences.size(), kWide);
      for (std::size_t i = 0; i < kWide; ++i) {
        const auto& tokens = together[at].sequences[i].tokens;
        const auto& expected = apart[at * kWide + i].tokens;
        ASSERT_EQ(tokens.size(), expected.size());
        for (std::size_t t = 0; t < tokens.size(); ++t) {
          ASSERT_EQ(tokens[t].sampled, expected[t].sampled)
              << "prompt " << 63 + at << ", sequence " << i << ", token " << t;
        }
      }
    }
    const scheduler::CoreCounters counters = runner.engine().probe().Read().core.counters;
    EXPECT_GT(counters.forks, 100u);
    EXPECT_GT(counters.block_copies, 100u);
    EXPECT_EQ(counters.preemptions > 0, blocks < 100);
  }
}

TEST_P(RunForksTest, BeamsFindTheSameInAnyBatch) {
  std::vector<TokenizedRequest> requests;
  for (const std::uint32_t prompt : {1u, 40u, 60u, 63u, 64u, 65u, 100u, 126u, 127u, 128u}) {
    TokenizedRequest& request = requests.emplace_back(Request(prompt, prompt, 12));
    request.sampling = {};
    request.sequences = 4;
    request.beam = BeamOptions{.beams = 4};
  }
  std::vector<Answer> alone;
  {
    EngineRunner runner(file_, Options(4096));
    for (const TokenizedRequest& request : requests) alone.push_back(runner.Run({request})[0]);
  }
  for (const std::uint32_t blocks : {4096u, 24u}) {
    SCOPED_TRACE(blocks);
    EngineRunner runner(file_, Options(blocks));
    const std::vector<Answer> answers = runner.Run(requests);
    for (std::size_t at = 0; at < answers.size(); ++at) {
      ASSERT_TRUE(answers[at].status.ok()) << answers[at].status;
      ASSERT_EQ(answers[at].sequences.size(), alone[at].sequences.size());
      for (std::size_t i = 0; i < answers[at].sequences.size(); ++i) {
        EXPECT_EQ(answers[at].sequences[i].ids(), alone[at].sequences[i].ids()) << at;
        EXPECT_EQ(answers[at].sequences[i].score, alone[at].sequences[i].score) << at;
      }
    }
    EXPECT_EQ(runner.engine().Load().blocks_used, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Kv, RunForksTest,
                         ::testing::Values(kernels::KvFormat{kInt4, kInt4},
                                           kernels::KvFormat{kInt8, kInt2}),
                         [](const auto& info) {
                           return std::string(info.param.key == kInt4 ? "int4" : "int8_int2");
                         });

}  // namespace
}  // namespace flotilla::testing
