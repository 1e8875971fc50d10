#include "common/types/sampling.h"

#include <cmath>
#include <string>
#include <type_traits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/types/parameters.h"

namespace flotilla {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kVocab = 50;

template <class Change>
std::string Refusal(Change change) {
  SamplingParams sampling;
  change(sampling);
  const absl::Status status = CheckSampling(sampling, kVocab);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(Sampling, DefaultsAreThoseOfTheRows) {
  ForEachOfSampler([](const Parameter& row, auto member) {
    EXPECT_EQ(SamplingParams{}.*member, *row.default_value) << std::string(row.name);
  });
}

TEST(Sampling, EdgesAreInside) {
  EXPECT_EQ(CheckSampling({}, kVocab), absl::OkStatus());
  for (const float penalty : {-2.0f, 2.0f}) {
    EXPECT_EQ(CheckSampling({.temperature = 0,
                             .top_k = 1 << 30,
                             .min_p = 1,
                             .repetition_penalty = penalty < 0 ? 0.01f : 100.0f,
                             .frequency_penalty = penalty,
                             .presence_penalty = penalty,
                             .logit_bias = {{0, 50 * penalty}, {kVocab - 1, 0}}},
                            kVocab),
              absl::OkStatus());
  }
}

TEST(Sampling, WhatIsOutsideIsNamed) {
  int rows = 0;
  ForEachOfSampler([&](const Parameter& row, auto member) {
    ++rows;
    const auto refused = [&](auto bad) {
      EXPECT_THAT(Refusal([&](auto& s) { s.*member = bad; }), HasSubstr(std::string(row.name)));
    };
    if constexpr (std::is_same_v<decltype(member), float SamplingParams::*>) {
      const auto low = static_cast<float>(row.range.low), high = static_cast<float>(row.range.high);
      for (const float bad : {NAN, -INFINITY, INFINITY, low - 1e-3f, high + 1e-3f}) refused(bad);
      if (row.range.above_low) refused(low);
    } else {
      refused(static_cast<int>(row.range.low) - 1);
    }
  });
  EXPECT_GT(rows, 6);
  for (const float bad : {NAN, -INFINITY, INFINITY, 100.1f, -100.1f}) {
    EXPECT_THAT(Refusal([&](auto& s) { s.logit_bias = {{1, bad}}; }), HasSubstr("logit_bias"));
  }
  for (const std::vector<LogitBias>& bad : std::vector<std::vector<LogitBias>>{
           {{-1, 0}}, {{kVocab, 0}}, {{3, 0}, {3, 0}}, {{3, 0}, {2, 0}}}) {
    EXPECT_THAT(Refusal([&](auto& s) { s.logit_bias = bad; }), HasSubstr("logit_bias"));
  }
  EXPECT_THAT(Refusal([](auto& s) { s.logit_bias.resize(1025); }), HasSubstr("at most 1024"));
  for (const std::vector<TokenId>& bad :
       std::vector<std::vector<TokenId>>{{-1}, {kVocab}, {3, 3}, {3, 2}}) {
    EXPECT_THAT(Refusal([&](auto& s) { s.allowed_tokens = bad; }), HasSubstr("allowed_token_ids"));
  }
  EXPECT_THAT(Refusal([](auto& s) { s.allowed_tokens.resize(4097); }), HasSubstr("at most 4096"));
  for (const std::vector<TokenId>& bad :
       std::vector<std::vector<TokenId>>{{}, {-1}, {0, kVocab}, std::vector<TokenId>(513)}) {
    EXPECT_THAT(Refusal([&](auto& s) { s.bad_words = {{1}, bad}; }), HasSubstr("bad_words"));
  }
  EXPECT_THAT(Refusal([](auto& s) { s.bad_words.assign(129, {1}); }), HasSubstr("at most 128"));
  const DryBreakers good{.heads = {1, 1, 4}, .tail_of = {0, 2, 1}, .tails = {{}, {1}, {1, 2}}};
  EXPECT_EQ(CheckSampling({.dry_breakers = good}, kVocab), absl::OkStatus());
  for (const DryBreakers& bad : std::vector<DryBreakers>{
           {{1, 4, 1}, {0, 2, 1}, {{}, {1}, {1, 2}}},
           {{1, 1, 4}, {0, 0, 1}, {{}, {1}}},
           {{1, 4}, {0}, {{}}},
           {{1, 4}, {0, 1}, {{}}},
           {{-1}, {0}, {{}}},
           {{kVocab}, {0}, {{}}},
           {{1}, {0}, {{kVocab}}},
           {{1}, {0}, {{1}, {}}},
           {{1}, {0}, {{1}, {1}}},
           {{1}, {0}, {std::vector<TokenId>(21, 1)}},
           {std::vector<TokenId>(16385), std::vector<std::uint32_t>(16385), {{}}},
       }) {
    EXPECT_THAT(Refusal([&](auto& s) { s.dry_breakers = bad; }),
                HasSubstr("dry_sequence_breakers"));
  }
}

TEST(Sampling, StopsAndLogprobsAreBounded) {
  EXPECT_EQ(CheckStopRule({.stop_tokens = {1, 2}, .max_tokens = 0, .min_tokens = 9}),
            absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckStopRule({.stop_tokens = {2, 1}})));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckStopRule({.stop_tokens = {2, 2}})));
  EXPECT_EQ(CheckLogprobs({.output_top = -1, .prompt_top = 20}), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckLogprobs({.output_top = 21})));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckLogprobs({.prompt_top = -2})));
}

}  // namespace
}  // namespace flotilla
