#include "loadtest/core/load_recorder.h"

#include <string>

#include "gtest/gtest.h"

namespace flotilla::loadtest {
namespace {

constexpr std::int64_t kMs = 1'000'000;

// Three digits of `ms`.
void ExpectMs(double value, double ms) { EXPECT_NEAR(value, ms, ms * 0.001); }

TEST(LoadRecorderTest, AllLatenciesCountFromWhenTheRequestWasDue) {
  LoadRecorder recorder({});
  // Due at 100 ms, but sent at 400 ms: the client or the server kept it from being sent.
  RequestMeter meter = recorder.OnSent(100 * kMs, 400 * kMs);
  recorder.OnToken(meter, 500 * kMs);
  recorder.OnToken(meter, 520 * kMs);
  recorder.OnToken(meter, 560 * kMs);
  recorder.OnFinished(meter, {.completion_tokens = 4, .prompt_tokens = 9, .cached_tokens = 2},
                      600 * kMs);
  const LoadResult result = recorder.Result();
  ExpectMs(result.ttft_ms.p50, 400);
  ExpectMs(result.send_lag_ms.max, 300);
  ExpectMs(result.e2e_ms.max, 500);
  ExpectMs(result.itl_ms.p50, 40);
  ExpectMs(result.itl_ms.mean, 30);
  ExpectMs(result.tpot_ms.mean, 20);  // the server counts a token more than there were events
  EXPECT_EQ(result.output_tokens, 4);
  EXPECT_EQ(result.prompt_tokens, 9);
  EXPECT_EQ(result.cached_tokens, 2);
  EXPECT_DOUBLE_EQ(result.seconds, 0.6);
  EXPECT_NEAR(result.output_tokens_per_s, 4 / 0.6, 1e-9);
}

// A server that is deaf for ten seconds: an open loop has a request due every 10 ms meanwhile. The
// median of all requests must show the stop, although only one request was under way when it began.
TEST(LoadRecorderTest, AStoppedServerShowsInThePercentiles) {
  LoadRecorder recorder({});
  for (std::int64_t due = 0; due < 20'000 * kMs; due += 10 * kMs) {
    const std::int64_t sent = due < 10'000 * kMs ? 10'000 * kMs : due;
    RequestMeter meter = recorder.OnSent(due, sent);
    recorder.OnToken(meter, sent + kMs);
    recorder.OnFinished(meter, {}, sent + kMs);
  }
  const LoadResult result = recorder.Result();
  EXPECT_GT(result.ttft_ms.p90, 7900);
  EXPECT_NEAR(result.ttft_ms.p99, 9800, 25);
  EXPECT_NEAR(result.good_share, 0.55, 0.01);  // a second before the end of the stop
}

TEST(LoadRecorderTest, GoodputKeepsEachBound) {
  const auto good = [](const ServiceLevel& level) {
    LoadRecorder recorder(level);
    RequestMeter meter = recorder.OnSent(0, 0);
    recorder.OnToken(meter, 50 * kMs);
    recorder.OnToken(meter, 80 * kMs);
    recorder.OnFinished(meter, {}, 90 * kMs);
    return recorder.Result().good_share;
  };
  EXPECT_EQ(good({.ttft_ms = 50, .itl_ms = 30, .e2e_ms = 90}), 1);
  EXPECT_EQ(good({.ttft_ms = 49, .itl_ms = 30, .e2e_ms = 90}), 0);
  EXPECT_EQ(good({.ttft_ms = 50, .itl_ms = 29, .e2e_ms = 90}), 0);
  EXPECT_EQ(good({.ttft_ms = 50, .itl_ms = 30, .e2e_ms = 89}), 0);
  EXPECT_EQ(good({.ttft_ms = 0, .itl_ms = 0, .e2e_ms = 0}), 1);
}

TEST(LoadRecorderTest, FailuresAreNotGoodAndHaveReasons) {
  LoadRecorder recorder({});
  RequestMeter fine = recorder.OnSent(0, 0);
  for (int i = 0; i < 100; ++i) recorder.OnSent(0, 0);
  EXPECT_EQ(recorder.in_flight(), 101u);
  recorder.OnToken(fine, kMs);
  recorder.OnFinished(fine, {}, kMs);
  for (int i = 0; i < 50; ++i) recorder.OnFailed("cut", 2 * kMs);
  for (int i = 0; i < 50; ++i) recorder.OnFailed("code " + std::to_string(i), 2 * kMs);
  const LoadResult result = recorder.Result();
  EXPECT_EQ(result.failed, 100);
  EXPECT_EQ(result.failures.at("cut"), 50);
  EXPECT_EQ(result.failures.at("other"), 19);
  EXPECT_LE(result.failures.size(), 33u);
  EXPECT_NEAR(result.good_share, 1.0 / 101, 1e-9);
  EXPECT_EQ(result.peak_in_flight, 101);
}

TEST(LoadRecorderTest, IntervalsOfALongTestStayFew) {
  LoadRecorder recorder({});
  const std::int64_t end = 3'600'000 * kMs;
  RequestMeter whole = recorder.OnSent(0, 0);
  for (std::int64_t now = kMs; now < end; now += 100 * kMs) recorder.OnToken(whole, now);
  recorder.OnFinished(whole, {}, end);
  const LoadResult result = recorder.Result();
  EXPECT_LE(result.intervals.size(), 240u);
  EXPECT_GE(result.intervals.size(), 100u);
  for (const LoadInterval& interval : result.intervals) {
    EXPECT_NEAR(interval.in_flight, 1, 1e-6);
    EXPECT_NEAR(interval.tokens_per_s, 10, 0.2);
  }
}

}  // namespace
}  // namespace flotilla::loadtest
