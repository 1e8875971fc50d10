#include "common/types/sampling.h"

#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  for (const float bad : {NAN, -INFINITY, INFINITY, -1e-3f}) {
    EXPECT_THAT(Refusal([&](auto& s) { s.temperature = bad; }), HasSubstr("temperature"));
    EXPECT_THAT(Refusal([&](auto& s) { s.top_p = bad; }), HasSubstr("top_p"));
    EXPECT_THAT(Refusal([&](auto& s) { s.min_p = bad; }), HasSubstr("min_p"));
    EXPECT_THAT(Refusal([&](auto& s) { s.repetition_penalty = bad; }),
                HasSubstr("repetition_penalty"));
  }
  for (const float bad : {NAN, -INFINITY, INFINITY, 2.001f, -2.001f}) {
    EXPECT_THAT(Refusal([&](auto& s) { s.frequency_penalty = bad; }),
                HasSubstr("frequency_penalty"));
    EXPECT_THAT(Refusal([&](auto& s) { s.presence_penalty = bad; }), HasSubstr("presence_penalty"));
    EXPECT_THAT(Refusal([&](auto& s) { s.logit_bias = {{1, 51 * bad}}; }), HasSubstr("logit_bias"));
  }
  for (const std::vector<LogitBias>& bad : std::vector<std::vector<LogitBias>>{
           {{-1, 0}}, {{kVocab, 0}}, {{3, 0}, {3, 0}}, {{3, 0}, {2, 0}}}) {
    EXPECT_THAT(Refusal([&](auto& s) { s.logit_bias = bad; }), HasSubstr("logit_bias"));
  }
  EXPECT_THAT(Refusal([](auto& s) { s.logit_bias.resize(1025); }), HasSubstr("at most 1024"));
  EXPECT_THAT(Refusal([](auto& s) { s.top_k = -1; }), HasSubstr("top_k"));
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
