// Tests what forecasts of the lengths of answers are worth: in steps, in the order of srpt and in
// memory.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "tests/scheduler/forecast_group.h"

namespace flotilla::scheduler {
namespace {

// Serves `count` requests whose answers have `outputs` of 1,000 tokens. Returns what the core
// expects of the next one.
std::uint64_t ExpectedAfter(CoreHarness& harness, std::uint64_t first_id, int count,
                            std::uint32_t outputs, bool max_tokens_absent = false) {
  harness.token_of = [outputs](const worker::BatchItem&, std::uint32_t output) {
    return output + 1 >= outputs ? kStop : static_cast<TokenId>(output % 900);
  };
  const auto submit = [&](std::uint64_t id) {
    TokenizedRequest request = LiveRequest(id, 100, 1000);
    request.max_tokens_absent = max_tokens_absent;
    harness.core.Submit(harness.now_ns, request);
    harness.TakeEvents();
  };
  for (int i = 0; i < count; ++i) submit(first_id++);
  harness.RunAll(100'000);
  submit(first_id);
  const std::uint64_t expected =
      std::get<Accepted>(harness.events[first_id].front()).expected_outputs;
  EXPECT_EQ(harness.core.Snapshot().load.outstanding_tokens, 100 + expected);
  harness.RunAll();
  EXPECT_EQ(harness.core.Snapshot().load.outstanding_tokens, 0u);
  return expected;
}

TEST(Forecast, LoadReportsCountWhatAnswersAreExpectedToHave) {
  CoreHarness harness({}, ForecastGroup());
  EXPECT_EQ(ExpectedAfter(harness, 1, 0, 30), 700u);  // the prior
  EXPECT_NEAR(static_cast<double>(ExpectedAfter(harness, 100, 100, 30)), 30, 4);
}

TEST(Forecast, RequestsWithoutMaxTokensAreAClass) {
  CoreHarness harness({}, ForecastGroup());
  EXPECT_NEAR(static_cast<double>(ExpectedAfter(harness, 1, 60, 30, true)), 30, 4);
  EXPECT_NEAR(static_cast<double>(ExpectedAfter(harness, 1000, 60, 300)), 300, 30);
  EXPECT_NEAR(static_cast<double>(ExpectedAfter(harness, 2000, 0, 30, true)), 30, 4);
}

// Requests of 100 tokens, of whose answers 15 in 100 have 1,500 tokens and the others 30.
std::uint32_t OutputsOf(std::uint64_t seed) {
  return (seed * 2654435761u >> 7) % 100 < 85 ? 30u : 1500u;
}

// The max_tokens that a client sends for an answer of so many tokens. None: it leaves them out, and
// the server allows what the context has left.
using MaxTokensOf = std::function<std::optional<std::uint32_t>(std::uint32_t outputs)>;

TokenizedRequest RequestWith(std::uint64_t id, std::uint32_t prompt, std::uint32_t outputs,
                             const MaxTokensOf& max_tokens_of) {
  constexpr std::uint32_t kContext = 8192;
  const std::optional<std::uint32_t> max_tokens = max_tokens_of(outputs);
  TokenizedRequest request = LiveRequest(id, prompt, max_tokens.value_or(kContext - prompt));
  request.max_tokens_absent = !max_tokens.has_value();
  return request;
}

std::optional<std::uint32_t> ExactMax(std::uint32_t outputs) { return outputs; }
std::optional<std::uint32_t> TwentyTimes(std::uint32_t outputs) {
  return std::min(20 * outputs, 8000u);
}
std::optional<std::uint32_t> NoMax(std::uint32_t) { return std::nullopt; }

// How many steps 300 of them take in 600 blocks, after some have been seen, 50 of the long ones.
std::uint64_t StepsWith(const MaxTokensOf& max_tokens_of, std::uint32_t max_preemptions) {
  CoreHarness harness(
      {.max_seqs = 64, .max_queued_tokens = 1 << 20, .max_preemptions = max_preemptions},
      ForecastGroup(601, 8192));
  harness.token_of = [&](const worker::BatchItem& item, std::uint32_t output) {
    return output + 1 >= OutputsOf(item.sampling->seed) ? kStop
                                                        : static_cast<TokenId>(output % 900);
  };
  std::uint64_t id = 1;
  const auto send = [&] {
    const std::uint32_t outputs = OutputsOf(LiveRequest(id, 100, 1).sampling.seed);
    harness.core.Submit(0, RequestWith(id, 100, outputs, max_tokens_of));
    ++id;
  };
  const auto run = [&] {
    std::uint64_t steps = 0;
    while (harness.core.live_requests() > 0 && steps < 200'000) {
      EXPECT_EQ(harness.Plan(), StallReason::kNone);
      harness.Answer();
      ++steps;
    }
    return steps;
  };
  for (int seen = 0; seen < 50; send())
    seen += OutputsOf(LiveRequest(id, 100, 1).sampling.seed) > 30;
  run();
  for (int i = 0; i < 300; ++i) send();
  return run();
}

TEST(Forecast, MaxTokensThatAreTooLargeCostNoSteps) {
  for (const std::uint32_t max_preemptions : {3u, 1000u}) {
    const std::uint64_t best = StepsWith(ExactMax, max_preemptions);
    const std::uint64_t with_twenty = StepsWith(TwentyTimes, max_preemptions);
    const std::uint64_t with_absent = StepsWith(NoMax, max_preemptions);
    std::printf(
        "at most %u preemptions: %llu steps with exact max_tokens, %llu with 20 times as "
        "much, %llu with none\n",
        max_preemptions, static_cast<unsigned long long>(best),
        static_cast<unsigned long long>(with_twenty), static_cast<unsigned long long>(with_absent));
    EXPECT_LE(with_twenty, best * 105 / 100);
    EXPECT_LE(with_absent, best * 105 / 100);
  }
}

// The mean times to the first token, of answers of 20 and of 400 tokens, under srpt. The prompts
// of the latter have `long_prompt` tokens.
std::pair<double, double> SrptWaits(std::uint32_t long_prompt, const MaxTokensOf& max_tokens_of) {
  CoreHarness harness({.max_seqs = 4}, ForecastGroup(), "srpt");
  const auto outputs_of = [](std::uint64_t seed) { return seed % 2 == 0 ? 20u : 400u; };
  harness.token_of = [&](const worker::BatchItem& item, std::uint32_t output) {
    return output + 1 >= outputs_of(item.sampling->seed) ? kStop
                                                         : static_cast<TokenId>(output % 900);
  };
  harness.step_ns = [](std::uint32_t prefill, std::uint32_t decodes) {
    return 1'000'000 + std::int64_t{20'000} * (prefill + decodes);
  };
  std::map<std::uint64_t, std::int64_t> sent, first;
  const auto step = [&] {
    if (harness.Plan() != StallReason::kNone && harness.plans.empty()) return false;
    harness.Answer();
    for (const auto& [id, events] : harness.events) {
      if (!first.contains(id) && harness.TokensOf(id) > 0) first[id] = harness.now_ns;
    }
    for (const auto& [id, at] : first) harness.events.erase(id);
    return true;
  };
  for (std::uint64_t id = 1; id <= 300; ++id) {
    while (id <= 121 && step()) {  // until 60 answers of each class have been seen
    }
    TokenizedRequest request =
        RequestWith(id, id % 2 == 0 ? 20 : long_prompt, outputs_of(id), max_tokens_of);
    request.sampling.seed = id;
    sent[id] = harness.now_ns;
    harness.core.Submit(harness.now_ns, request);
    for (int s = 0; id % 2 == 0 && s < 100; ++s) step();
  }
  while (step()) {
  }
  double waits[2] = {0, 0};
  int count[2] = {0, 0};
  for (const auto& [id, at] : first) {
    if (id <= 120) continue;
    waits[id % 2] += static_cast<double>(at - sent[id]) * 1e-6;
    ++count[id % 2];
  }
  return {waits[0] / count[0], waits[1] / count[1]};
}

// The lengths of answers are known by the class of max_tokens. If all leave it out, they are known
// by the class of the prompt's length.
TEST(Forecast, SrptOrdersByAnswersAndNotByMaxTokens) {
  const struct {
    const char* what;
    std::uint32_t long_prompt;
    MaxTokensOf max_tokens_of;
  } cases[] = {
      {"4,000 for the short answers", 20,
       [](std::uint32_t outputs) { return outputs == 20 ? 4000 : outputs; }},
      {"20 times as much for all", 20, TwentyTimes},
      {"none for the short answers and as much for the long ones", 20,
       [](std::uint32_t outputs) { return outputs == 20 ? NoMax(20) : 8172; }},
      {"none for the long answers and as much for the short ones", 20,
       [](std::uint32_t outputs) { return outputs == 400 ? NoMax(400) : 8172; }},
      {"none for all", 200, NoMax},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.what);
    const auto [exact_short, exact_long] = SrptWaits(one.long_prompt, ExactMax);
    const auto [short_answers, long_answers] = SrptWaits(one.long_prompt, one.max_tokens_of);
    std::printf("first token with exact max_tokens: %.0f and %.0f ms; with %s: %.0f and %.0f ms\n",
                exact_short, exact_long, one.what, short_answers, long_answers);
    EXPECT_LE(short_answers, 1.2 * exact_short);
    EXPECT_LE(long_answers, 1.2 * exact_long);
  }
}

TEST(Forecast, ProtectedRequestsReserveWhatTheyAreExpectedToNeed) {
  const auto steps = [](const MaxTokensOf& max_tokens_of) {
    CoreHarness harness({.max_seqs = 64,
                         .max_queued_tokens = 1 << 20,
                         .watermark_blocks = 0,
                         .expected_output_permille = 0},
                        ForecastGroup(601, 8192));
    harness.token_of = [](const worker::BatchItem& item, std::uint32_t output) {
      return output >= 250 + item.sampling->seed % 50 ? kStop : static_cast<TokenId>(output % 900);
    };
    std::uint64_t plans = 0;
    for (std::uint64_t id = 1; id <= 260; ++id) {
      harness.core.Submit(0, RequestWith(id, 100, 300, max_tokens_of));
      if (id != 60 && id != 260) continue;  // the first 60 show how long answers are
      plans = 0;
      while (harness.core.live_requests() > 0 && plans < 100'000) {
        EXPECT_EQ(harness.Plan(), StallReason::kNone);
        harness.Answer();
        ++plans;
      }
    }
    return plans;
  };
  const std::uint64_t exact = steps(ExactMax), large = steps(TwentyTimes), none = steps(NoMax);
  std::printf("%llu steps with max_tokens 300, %llu with 6,000, %llu with none\n",
              static_cast<unsigned long long>(exact), static_cast<unsigned long long>(large),
              static_cast<unsigned long long>(none));
  EXPECT_LE(large, exact * 105 / 100);
  EXPECT_LE(none, exact * 105 / 100);
}

}  // namespace
}  // namespace flotilla::scheduler
