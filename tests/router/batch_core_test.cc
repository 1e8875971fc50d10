// Which lines of a batch are answered when, and in what order.
#include "router/batch/batch_core.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr std::int64_t kMs = 1'000'000;

AnswerSummary Ok(const std::string& id) {
  return {.custom_id = id, .status = 200, .prompt_tokens = 5, .completion_tokens = 2};
}

BatchCore Batch(std::uint32_t concurrency, const std::vector<std::string>& ids) {
  BatchCore core(concurrency);
  for (const std::string& id : ids) EXPECT_TRUE(core.Add(id).ok());
  return core;
}

std::vector<std::size_t> StartAll(BatchCore& core, std::int64_t now_ns = 0) {
  std::vector<std::size_t> started;
  while (const auto line = core.Next(now_ns)) started.push_back(*line);
  return started;
}

TEST(BatchCoreTest, LinesStartInOrderWithinTheConcurrency) {
  BatchCore core = Batch(2, {"a", "b", "c"});
  EXPECT_THAT(StartAll(core), ElementsAre(0, 1));
  core.OnAnswered(1, Ok("b"));
  EXPECT_THAT(StartAll(core), ElementsAre(2));
  EXPECT_EQ(core.in_flight(), 2u);
  core.OnAnswered(0, Ok("a"));
  EXPECT_FALSE(core.over());
  core.OnAnswered(2, Ok("c"));
  EXPECT_TRUE(core.complete() && core.over());
  EXPECT_EQ(core.counts().prompt_tokens, 15u);
  EXPECT_EQ(core.counts().completion_tokens, 6u);
}

TEST(BatchCoreTest, AnIdThatComesTwiceIsNamedWithItsLine) {
  BatchCore core = Batch(1, {"a", "b"});
  const absl::Status status = core.Add("b");
  EXPECT_TRUE(absl::IsAlreadyExists(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("line 2 has the same custom_id 'b'"));
}

TEST(BatchCoreTest, WhatAnEarlierRunAnsweredIsCountedAndNotStarted) {
  BatchCore core = Batch(9, {"a", "b", "c"});
  ASSERT_TRUE(core.Recover(Ok("b")).ok());
  EXPECT_THAT(StartAll(core), ElementsAre(0, 2));
  EXPECT_THAT(core.counts().by_status, ElementsAre(Pair(200, 1)));
  EXPECT_EQ(core.counts().answered, 1u);
}

TEST(BatchCoreTest, AnOutputOfAnotherInputIsRefused) {
  BatchCore core = Batch(1, {"a"});
  EXPECT_TRUE(absl::IsNotFound(core.Recover(Ok("x"))));
  EXPECT_TRUE(core.Recover(Ok("a")).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(core.Recover(Ok("a"))));
}

TEST(BatchCoreTest, ARefusedLineStartsAgainAfterTheWaitAndBeforeLaterLines) {
  BatchCore core = Batch(2, {"a", "b", "c"});
  StartAll(core);
  EXPECT_TRUE(core.OnRefused(0, 429, 500, 0));
  EXPECT_THAT(StartAll(core, 499 * kMs), ElementsAre());
  EXPECT_EQ(core.resume_ns(1), 500 * kMs);
  EXPECT_THAT(StartAll(core, 500 * kMs), ElementsAre(0));
  EXPECT_EQ(core.resume_ns(500 * kMs), std::nullopt);
  EXPECT_EQ(core.counts().answered, 0u);
}

TEST(BatchCoreTest, AWaitIsBounded) {
  BatchCore core = Batch(1, {"a"});
  StartAll(core);
  EXPECT_TRUE(core.OnRefused(0, 429, 3'600'000, 0));
  EXPECT_THAT(StartAll(core, 2000 * kMs), ElementsAre(0));
  EXPECT_TRUE(core.OnRefused(0, 429, 0, 2000 * kMs));
  EXPECT_THAT(StartAll(core, 2001 * kMs), ElementsAre());
  EXPECT_THAT(StartAll(core, 2200 * kMs), ElementsAre(0));
}

TEST(BatchCoreTest, OnlyServiceThatDoesNotComeBackIsAnAnswer) {
  BatchCore core = Batch(1, {"a"});
  std::int64_t now = 0;
  const auto refuse = [&](int status) {
    now += 10'000 * kMs;
    EXPECT_THAT(StartAll(core, now), ElementsAre(0));
    return core.OnRefused(0, status, 1, now);
  };
  for (int i = 0; i < 900; ++i) EXPECT_TRUE(refuse(429));
  for (int i = 1; i < BatchCore::kMaxUnavailable; ++i) EXPECT_TRUE(refuse(503));
  EXPECT_FALSE(refuse(503));
  core.OnAnswered(0, {.custom_id = "a", .status = 503});
  EXPECT_TRUE(core.over());
}

TEST(BatchCoreTest, AfterAStopWhatIsInFlightEndsAndNothingStarts) {
  BatchCore core = Batch(2, {"a", "b", "c"});
  StartAll(core);
  core.Stop();
  EXPECT_TRUE(core.OnRefused(0, 429, 1, 0));
  EXPECT_THAT(StartAll(core, 10'000 * kMs), ElementsAre());
  EXPECT_EQ(core.resume_ns(0), std::nullopt);
  EXPECT_FALSE(core.over());
  core.OnAnswered(1, Ok("b"));
  EXPECT_TRUE(core.over() && !core.complete());
}

TEST(BatchCoreTest, ABatchWithoutLinesIsOver) {
  BatchCore core(1);
  EXPECT_TRUE(core.over() && core.complete());
  EXPECT_EQ(core.Next(0), std::nullopt);
}

// A batch is run again and again, each time up to a random moment; of what was answered then, some
// has not been written.
TEST(BatchCoreTest, HoweverOftenItIsKilledEachLineIsAnsweredOnce) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto draw = [&random](unsigned n) { return static_cast<unsigned>(random() % n); };
    std::vector<std::string> ids, written;
    for (unsigned i = 0; i < 1 + draw(40); ++i) ids.push_back(std::to_string(i));
    for (int run = 0; written.size() < ids.size(); ++run) {
      ASSERT_LT(run, 1000);
      BatchCore core = Batch(1 + draw(8), ids);
      for (const std::string& id : written) ASSERT_TRUE(core.Recover(Ok(id)).ok());
      std::vector<std::size_t> flying;
      std::int64_t now = 0;
      for (unsigned step = draw(60); step > 0 && !core.over(); --step) {
        for (const std::size_t line : StartAll(core, now += 100 * kMs)) flying.push_back(line);
        if (flying.empty()) continue;
        std::swap(flying[draw(static_cast<unsigned>(flying.size()))], flying.back());
        const std::size_t line = flying.back();
        flying.pop_back();
        if (draw(4) == 0) {
          ASSERT_TRUE(core.OnRefused(line, 429, draw(300), now));
        } else {
          core.OnAnswered(line, Ok(core.custom_id(line)));
          written.push_back(core.custom_id(line));
        }
      }
      ASSERT_EQ(core.in_flight(), flying.size());
    }
    EXPECT_EQ(std::set<std::string>(written.begin(), written.end()).size(), written.size());
  }
}

TEST(BatchCoreTest, WithoutALimitARefusalIsNeverAnAnswer) {
  BatchCore core(1, /*max_unavailable=*/0);
  ASSERT_TRUE(core.Add("a").ok());
  for (std::int64_t i = 0; i < 1000; ++i) {
    ASSERT_THAT(StartAll(core, i * 2000 * kMs), ElementsAre(0));
    ASSERT_TRUE(core.OnRefused(0, 503, 2000, i * 2000 * kMs));
  }
}

TEST(BatchCoreTest, RefusedAndNewLinesTakeTurns) {
  BatchCore core = Batch(4, {"a", "b", "c", "d", "e", "f"});
  StartAll(core);
  for (std::size_t line = 0; line < 4; ++line) EXPECT_TRUE(core.OnRefused(line, 429, 1, 0));
  EXPECT_THAT(StartAll(core, kMs), ElementsAre(0, 4, 1, 5));
}

// The engine never has room for line 0, e.g. because its grammar can never be compiled.
TEST(BatchCoreTest, ALineThatIsRefusedForEverHoldsUpNoOthersAndEnds) {
  std::vector<std::string> ids;
  for (int i = 0; i < 2000; ++i) ids.push_back(std::to_string(i));
  BatchCore core = Batch(2, ids);
  std::int64_t now = 0;
  int refusals = 0;
  while (!core.complete()) {
    const std::vector<std::size_t> started = StartAll(core, now += 2000 * kMs);
    ASSERT_FALSE(started.empty());
    bool ends = false;
    for (const std::size_t line : started) {
      if (line != 0) core.OnAnswered(line, Ok(core.custom_id(line)));
      if (line == 0) ends = true;
    }
    if (!ends) continue;
    ++refusals;
    if (!core.OnRefused(0, 429, 1, now)) core.OnAnswered(0, {.custom_id = "0", .status = 429});
  }
  EXPECT_EQ(refusals, BatchCore::kMaxPassedBy);
}

// A line that is alone and finds no room is not asked for for ever.
TEST(BatchCoreTest, ALineForWhichThereIsNeverRoomEnds) {
  BatchCore core = Batch(4, {"a"});
  for (int i = 1; i <= BatchCore::kMaxPassedBy; ++i) {
    ASSERT_THAT(StartAll(core, i * 2000 * kMs), ElementsAre(0));
    ASSERT_EQ(core.OnRefused(0, 429, 1, i * 2000 * kMs), i < BatchCore::kMaxPassedBy);
  }
}

// While the engine answers nothing at all, e.g. because others have it full, no line ends.
TEST(BatchCoreTest, RefusalsOfAllLinesAreNoAnswers) {
  BatchCore core = Batch(4, {"a", "b", "c", "d", "e", "f"});
  for (std::int64_t i = 1; i < 5000; ++i) {
    for (const std::size_t line : StartAll(core, i * 2000 * kMs)) {
      if (core.in_flight() == 1) continue;
      ASSERT_TRUE(core.OnRefused(line, 429, 1, i * 2000 * kMs));
    }
  }
}

TEST(BatchCoreTest, TheConcurrencyMayChange) {
  BatchCore core = Batch(1, {"a", "b", "c", "d"});
  EXPECT_THAT(StartAll(core), ElementsAre(0));
  core.set_concurrency(3);
  EXPECT_THAT(StartAll(core), ElementsAre(1, 2));
  core.set_concurrency(1);
  core.OnAnswered(0, Ok("a"));
  core.OnAnswered(1, Ok("b"));
  EXPECT_TRUE(core.answered(0) && !core.answered(2));
  EXPECT_THAT(StartAll(core), ElementsAre());
}

}  // namespace
}  // namespace flotilla::router
