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

// The steps of a request beside one whose masks are always late are those that it needs alone, and
// few of them have a row that runs for nothing.
TEST(Constraints, NobodyElseWaitsForALateMask) {
  CoreHarness harness({}, ConstraintsGroup(1));
  harness.mask_of = [](const worker::BatchItem&) { return std::optional<std::string>(""); };
  harness.core.Submit(0, Constrained(1, 40, 50));
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  EXPECT_EQ(harness.core.Snapshot().counters.late_rows, 10u);
  harness.Submit(2, 20, 30);
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
  EXPECT_EQ(harness.TokensOf(2), 30u);
  EXPECT_EQ(harness.TokensOf(1), 0u);
  // One in the step of the prompt, and then one in seven.
  EXPECT_EQ(harness.core.Snapshot().counters.late_rows, 10u + 1 + 4);
}

// A mask that was late for once costs its request two plans at most, and one that was late for long
// seven.
TEST(Constraints, ARowWhoseMaskIsThereAgainRunsSoon) {
  for (const std::uint32_t lag : {1u, 2u}) {
    for (const int times : {1, 2, 3, 4, 8, 40}) {
      CoreHarness harness({}, ConstraintsGroup(lag));
      int ready_at = 0;
      std::map<std::uint32_t, int> late;
      harness.mask_of = [&](const worker::BatchItem&) -> std::optional<std::string> {
        if (late[0]++ < times) return "";
        return std::nullopt;
      };
      harness.Submit(1, 20, 500);
      harness.core.Submit(0, Constrained(2, 20, 1));
      int plans = 0;
      for (; harness.TokensOf(2) == 0 && plans < 500; ++plans) {
        while (harness.Plan() == StallReason::kNone) {
        }
        if (late[0] == times && ready_at == 0) ready_at = plans;
        harness.Answer();
      }
      EXPECT_LE(plans - ready_at, static_cast<int>(lag) * (times < 3 ? 3 : 8))
          << lag << " " << times;
    }
  }
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

// After 64 steps with chunks one measures decodes alone. If all of its rows are late there is
// nothing to learn, and prompts do not wait until there is.
TEST(Constraints, PromptsWaitForOneStepWhoseRowsAreAllLate) {
  CoreHarness harness({}, ConstraintsGroup(1));
  harness.step_ns = [](std::uint32_t prefill, std::uint32_t) {
    return 1'000'000 + 10'000 * prefill;
  };
  harness.core.Submit(0, Constrained(1, 4, 500));
  int alone = 0;
  for (std::uint64_t id = 2; id < 300; ++id) {
    // The rows of what follows a step without chunks are late, too.
    harness.mask_of = [&](const worker::BatchItem&) {
      return id > 100 ? std::optional<std::string>("") : std::nullopt;
    };
    harness.Submit(id, 300, 1);
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    const StepResult result = harness.Answer();
    const bool chunks = result.timings.rows > result.timings.decode_rows;
    ASSERT_FALSE(!chunks && alone > 0 && alone > static_cast<int>(id) - 64) << id;
    if (!chunks) alone = static_cast<int>(id);
  }
  EXPECT_GT(alone, 100);
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
  EXPECT_EQ(harness.EndOf(1)->retry_after_ms, 0);
  EXPECT_EQ(harness.TokensOf(2), 8u);
  EXPECT_EQ(harness.EndOf(2)->status, absl::OkStatus());
}

TokenizedRequest ConstrainedBeams(std::uint64_t id, std::uint32_t beams, std::uint32_t outputs) {
  TokenizedRequest request = Constrained(id, 33, outputs);
  request.beam = BeamOptions{.beams = beams};
  request.sequences = beams;
  return request;
}

// Of a beam search that was late, only the beam whose mask was late runs again.
TEST(Constraints, LateBeamsRunAgainAndTheOthersWaitForThem) {
  for (const std::uint32_t lag : {1u, 2u, 3u}) {
    CoreHarness prompt({}, ConstraintsGroup(lag));
    CoreHarness late({}, ConstraintsGroup(lag));
    late.mask_of = [times = std::map<std::pair<std::uint32_t, std::uint32_t>, int>()](
                       const worker::BatchItem& item) mutable -> std::optional<std::string> {
      const bool chosen = (item.output_index + item.index.value()) % 2 == 0;
      if (chosen && times[{item.index.value(), item.output_index}]++ < 2) return "";
      return std::nullopt;
    };
    for (CoreHarness* harness : {&prompt, &late}) {
      harness->core.Submit(0, ConstrainedBeams(1, 3, 12));
      harness->RunAll();
      ASSERT_TRUE(harness->EndOf(1).has_value());
      EXPECT_EQ(harness->EndOf(1)->status, absl::OkStatus());
    }
    EXPECT_EQ(TokensOf(late, 1).size(), 36u);
    EXPECT_EQ(TokensOf(late, 1), TokensOf(prompt, 1));
    EXPECT_EQ(prompt.core.Snapshot().counters.late_rows, 0u);
    EXPECT_GE(late.core.Snapshot().counters.late_rows, 24u);
  }
}

TEST(Constraints, ARefusalOfOneBeamEndsTheSearch) {
  CoreHarness harness({}, ConstraintsGroup(1));
  harness.mask_of = [](const worker::BatchItem& item) -> std::optional<std::string> {
    if (item.output_index == 2 && item.index.value() == 1) return "the grammar is too hard";
    return std::nullopt;
  };
  harness.core.Submit(0, ConstrainedBeams(1, 3, 12));
  harness.RunAll();
  EXPECT_EQ(harness.TokensOf(1), 0u);
  EXPECT_EQ(harness.ReasonOf(1), FinishReason::kError);
  EXPECT_TRUE(absl::IsInvalidArgument(harness.EndOf(1)->status));
}

std::vector<SequenceEnd> EndsOf(CoreHarness& harness, std::uint64_t id) {
  std::vector<SequenceEnd> ends;
  for (const EngineEvent& event : harness.events[id]) {
    if (const auto* end = std::get_if<SequenceEnd>(&event)) ends.push_back(*end);
  }
  return ends;
}

// A beam after which the grammar allows no token drops out, whether others are late or not.
TEST(Constraints, TheSearchGoesOnWithoutABeamAfterWhichNoTokenMayCome) {
  for (const std::uint32_t lag : {1u, 2u, 3u}) {
    std::vector<TokenId> tokens;
    for (const bool late : {false, true}) {
      CoreHarness harness({}, ConstraintsGroup(lag));
      harness.no_token = true;
      int dead_ends = 0;
      harness.mask_of = [&, times = std::map<std::pair<std::uint32_t, std::uint32_t>, int>()](
                            const worker::BatchItem& item) mutable -> std::optional<std::string> {
        const std::pair<std::uint32_t, std::uint32_t> row = {item.index.value(), item.output_index};
        if (row.second % 3 == 2 && row.first == 1) {
          ++dead_ends;
          return "nothing may come here";
        }
        if (late && times[row]++ < 2) return "";
        return std::nullopt;
      };
      harness.core.Submit(0, ConstrainedBeams(1, 3, 12));
      harness.RunAll();
      ASSERT_TRUE(harness.EndOf(1).has_value());
      EXPECT_EQ(harness.EndOf(1)->status, absl::OkStatus());
      for (const SequenceEnd& end : EndsOf(harness, 1)) EXPECT_EQ(end.output_tokens, 12u);
      if (!late) tokens = TokensOf(harness, 1);
      EXPECT_EQ(TokensOf(harness, 1), tokens);
      EXPECT_EQ(harness.core.Snapshot().counters.late_rows > 0, late);
      EXPECT_EQ(dead_ends, 4);
    }
    EXPECT_EQ(tokens.size(), 36u);
  }
}

TEST(Constraints, ASearchWhoseBeamsAreAllDeadEndsIsRefused) {
  for (const std::uint32_t at : {0u, 2u}) {
    CoreHarness harness({}, ConstraintsGroup(1));
    harness.no_token = true;
    harness.mask_of = [at](const worker::BatchItem& item) -> std::optional<std::string> {
      if (item.output_index == at) return "nothing may come here";
      return std::nullopt;
    };
    harness.core.Submit(0, ConstrainedBeams(1, 3, 12));
    harness.RunAll();
    EXPECT_EQ(harness.TokensOf(1), 0u);
    EXPECT_EQ(harness.ReasonOf(1), FinishReason::kError);
    EXPECT_EQ(harness.EndOf(1)->status,
              absl::InvalidArgumentError("the constraint of the answer: nothing may come here"));
  }
}

// The answers that are complete stay when no beam can go on.
TEST(Constraints, ASearchThatComesToDeadEndsHasTheAnswersThatAreComplete) {
  CoreHarness harness({}, ConstraintsGroup(1));
  harness.no_token = true;
  harness.mask_of = [](const worker::BatchItem& item) -> std::optional<std::string> {
    if (item.output_index == 3) return "nothing may come here";
    return std::nullopt;
  };
  TokenizedRequest request = ConstrainedBeams(1, 3, 12);
  // The best token after the prompt ends an answer (CoreHarness::Answer).
  request.stop.stop_tokens = {(request.prompt.back() + 1) % 1000};
  harness.core.Submit(0, request);
  harness.RunAll();
  ASSERT_TRUE(harness.EndOf(1).has_value());
  EXPECT_EQ(harness.EndOf(1)->status, absl::OkStatus());
  const std::vector<SequenceEnd> ends = EndsOf(harness, 1);
  ASSERT_EQ(ends.size(), 3u);
  EXPECT_EQ(ends[0].reason, FinishReason::kStop);
  EXPECT_EQ(ends[0].output_tokens, 1u);
}

// A grammar may have one answer where three are asked for. An empty one must not look complete.
TEST(Constraints, AnswersThatTheGrammarDoesNotHaveAreEmpty) {
  CoreHarness harness({}, ConstraintsGroup(1));
  harness.most_candidates = 1;
  harness.core.Submit(0, ConstrainedBeams(1, 3, 12));
  harness.RunAll();
  const std::vector<SequenceEnd> ends = EndsOf(harness, 1);
  ASSERT_EQ(ends.size(), 3u);
  EXPECT_EQ(ends[0].output_tokens, 12u);
  for (const std::size_t i : {1, 2}) {
    EXPECT_EQ(ends[i].output_tokens, 0u);
    EXPECT_EQ(ends[i].reason, FinishReason::kLength);
  }
}

// A plan is a message to the workers, so long constraints come a few at a time.
TEST(Constraints, APlanCarriesABoundedNumberOfBytesOfThem) {
  ExecutorDescription group = ConstraintsGroup(1);
  group.max_sequences = 256;
  group.max_step_tokens = 2048;
  group.block_count = 4096;
  CoreHarness harness({.max_seqs = 256, .max_step_tokens = 2048, .max_queued_tokens = 100'000},
                      group);
  for (std::uint64_t id = 1; id <= 200; ++id) {
    TokenizedRequest request = Constrained(id, 4, 3);
    request.sampling.constraint.text = std::string(Constraint::kMaxBytes, 'a');
    harness.core.Submit(0, request);
    harness.Submit(1000 + id, 4, 3);
  }
  std::size_t plans = 0, most = 0;
  for (; harness.Plan() == StallReason::kNone; ++plans) {
    std::size_t bytes = 0;
    for (const OpenSequence& open : CoreHarness::OpsOf<OpenSequence>(harness.plans.front())) {
      bytes += open.sampling.constraint.text.size();
    }
    EXPECT_LE(bytes, 4u << 20);
    most = std::max(most, bytes);
    harness.Answer();
  }
  EXPECT_EQ(most, 4u << 20);
  for (std::uint64_t id = 1; id <= 200; ++id) {
    EXPECT_EQ(harness.TokensOf(id), 3u);
    EXPECT_EQ(harness.TokensOf(1000 + id), 3u);
  }
}

// A client may try again, which differs from a grammar that will never do.
TEST(Constraints, NoRoomForAConstraintIsAnOverload) {
  CoreHarness harness({}, ConstraintsGroup(1));
  harness.no_room = true;
  harness.mask_of = [](const worker::BatchItem&) { return std::optional<std::string>("full"); };
  harness.core.Submit(0, Constrained(1, 40, 50));
  harness.RunAll();
  ASSERT_TRUE(harness.EndOf(1).has_value());
  EXPECT_EQ(harness.EndOf(1)->status,
            absl::ResourceExhaustedError("the constraint of the answer: full"));
  EXPECT_GT(harness.EndOf(1)->retry_after_ms, 0);
}

}  // namespace
}  // namespace flotilla::scheduler
