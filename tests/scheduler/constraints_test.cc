// Requests with constraints: rows whose masks are late run again, and delay nobody else.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {
namespace {

using ::testing::HasSubstr;

ExecutorDescription ConstraintsGroup(std::uint32_t lag) {
  ExecutorDescription group = testing::FakeExecutorOptions::DefaultDescription();
  group.lag = lag;
  group.max_draft_tokens = 4;
  return group;
}

TokenizedRequest Constrained(std::uint64_t id, std::uint32_t prompt, std::uint32_t outputs) {
  TokenizedRequest request = CoreHarness::Request(id, prompt, outputs);
  request.sampling.constraint = {.kind = Constraint::Kind::kRegex, .text = "a*"};
  return request;
}

std::vector<TokenId> TokensOf(CoreHarness& harness, std::uint64_t id) {
  std::vector<TokenId> tokens;
  for (const EngineEvent& event : harness.events[id]) {
    if (const auto* token = std::get_if<TokenEvent>(&event)) tokens.push_back(token->sampled.token);
  }
  return tokens;
}

// Says that the mask of each output token is late the first `times` times.
auto LateTimes(std::uint32_t times) {
  return [times, seen = std::map<std::uint32_t, std::uint32_t>()](
             const worker::BatchItem& item) mutable -> std::optional<std::string> {
    if (seen[item.output_index]++ < times) return "";
    return std::nullopt;
  };
}

TEST(Constraints, LateRowsRunAgainAndGiveTheSameTokens) {
  for (const std::uint32_t lag : {1u, 2u, 3u}) {
    for (const std::uint32_t draft_tokens : {0u, 4u}) {
      CoreHarness prompt({.max_draft_tokens = draft_tokens}, ConstraintsGroup(lag));
      CoreHarness late({.max_draft_tokens = draft_tokens}, ConstraintsGroup(lag));
      late.mask_of = LateTimes(3);
      for (CoreHarness* harness : {&prompt, &late}) {
        harness->core.Submit(0, Constrained(1, 33, 20));
        harness->RunAll();
        EXPECT_EQ(harness->ReasonOf(1), FinishReason::kLength);
      }
      EXPECT_EQ(TokensOf(late, 1).size(), 20u);
      EXPECT_EQ(TokensOf(late, 1), TokensOf(prompt, 1));
      EXPECT_EQ(prompt.core.Snapshot().counters.late_rows, 0u);
      EXPECT_GE(late.core.Snapshot().counters.late_rows, 3u * (draft_tokens == 0 ? 20 : 1));
    }
  }
}

// The steps of a request beside one whose masks are always late are those that it needs alone.
TEST(Constraints, NobodyElseWaitsForALateMask) {
  CoreHarness harness({}, ConstraintsGroup(1));
  harness.mask_of = [](const worker::BatchItem&) { return std::optional<std::string>(""); };
  harness.core.Submit(0, Constrained(1, 40, 50));
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  harness.Submit(2, 20, 8);
  for (int i = 0; i < 8; ++i) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  EXPECT_EQ(harness.TokensOf(2), 8u);
  EXPECT_EQ(harness.TokensOf(1), 0u);
  EXPECT_GE(harness.core.Snapshot().counters.late_rows, 17u);
}

// A worker may wait in a step that has nothing but rows whose masks are late.
TEST(Constraints, TimesOfLateRowsAreNotLearnt) {
  CoreHarness harness({}, ConstraintsGroup(1));
  bool late = false;
  harness.mask_of = [&](const worker::BatchItem&) {
    return late ? std::optional<std::string>("") : std::nullopt;
  };
  harness.step_ns = [&](std::uint32_t, std::uint32_t) { return late ? 50'000'000 : 1'000'000; };
  harness.Submit(1, 20, 150);
  harness.RunAll();
  harness.core.Submit(harness.now_ns, Constrained(2, 20, 50));
  late = true;
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  ASSERT_EQ(harness.Plan(), StallReason::kNone);
  EXPECT_LT(harness.plans.back().predicted_ns, 10'000'000);
}

TEST(Constraints, ARefusalEndsTheRequestAndNamesTheReason) {
  CoreHarness harness({}, ConstraintsGroup(1));
  harness.mask_of = [](const worker::BatchItem& item) -> std::optional<std::string> {
    if (item.output_index == 2) return "the grammar is too hard";
    return std::nullopt;
  };
  harness.core.Submit(0, Constrained(1, 40, 50));
  harness.Submit(2, 20, 8);
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(1), 2u);
  EXPECT_EQ(harness.ReasonOf(1), FinishReason::kError);
  const absl::Status status = harness.EndOf(1)->status;
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the grammar is too hard"));
  EXPECT_EQ(harness.TokensOf(2), 8u);
  EXPECT_EQ(harness.EndOf(2)->status, absl::OkStatus());
}

}  // namespace
}  // namespace flotilla::scheduler
