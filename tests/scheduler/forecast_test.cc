// Tests what the scheduler's estimates are worth, in virtual time: deadlines and refusals, on
// machines that it has to learn.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/scheduler/forecast_group.h"
#include "tests/support/random.h"

namespace flotilla::scheduler {
namespace {

TEST(Forecast, ADeadlineThatCanBeMetIsMetAfterManyShortPrompts) {
  CoreHarness harness({.max_step_tokens = 2048, .max_chunk_tokens = 2048}, ForecastGroup(), "edf");
  harness.step_ns = [](std::uint32_t prefill, std::uint32_t decodes) {
    return std::max<std::int64_t>(4'000'000, std::int64_t{20'000} * (prefill + decodes));
  };
  for (std::uint64_t id = 1; id <= 40; ++id) {
    harness.Submit(id, 20, 2);
    harness.RunAll();
  }
  TokenizedRequest request = CoreHarness::Request(100, 8000, 2);
  request.deadline_ns = harness.now_ns + 1'000'000'000;
  harness.core.Submit(harness.now_ns, request);
  harness.RunAll();
  EXPECT_EQ(harness.ReasonOf(100), FinishReason::kLength);
}

// Requests that ended for their deadlines: before they had a token, and later. Some of them would
// have met these if they had run next.
struct Mix {
  int dropped = 0, could_start = 0;
  int ended = 0, could_go_on = 0;
};

// Serves a seeded mix under edf on a machine of random costs. What is left of a request that is
// ended for its deadline is computed by the true costs as if it ran next beside those that decode.
Mix DropsOf(std::uint64_t seed) {
  testing::Random random(seed);
  const std::int64_t fixed = random.Between(200'000, 5'000'000);
  const std::int64_t row = random.Between(5'000, 400'000);
  const std::int64_t context = random.Between(0, 200), decode_context = random.Between(0, 800);
  const auto chunk_ns = [=](std::int64_t begin, std::int64_t rows) {
    return row * rows + context * (rows * begin + rows * (rows + 1) / 2);
  };
  const auto decode_ns = [=](std::int64_t length) { return row + decode_context * length; };
  CoreHarness harness({.max_seqs = 8, .prefix_cache = false}, ForecastGroup(), "edf");
  harness.batch_ns = [=](const worker::Batch& batch) {
    std::int64_t ns = fixed;
    for (const worker::BatchItem& item : batch.items) {
      ns += item.decode ? decode_ns(item.first_position + 1)
                        : chunk_ns(item.first_position, item.row_count);
    }
    return ns;
  };
  struct Sent {
    std::int64_t prompt, outputs, deadline;
  };
  struct Begun {
    std::int64_t computed = 0, made = 0;
    bool decodes = false;
  };
  std::map<std::uint64_t, Sent> sent;
  std::map<std::uint64_t, Begun> begun;  // at the last call of `look`, when no plan is in flight
  const auto look = [&] {
    begun.clear();
    for (const OpenSequenceView& view : harness.core.OpenSequences()) {
      const std::uint64_t id = view.request.counter;
      begun[id] = {.computed = view.length.computed,
                   .made = static_cast<std::int64_t>(view.tokens.size()) - sent[id].prompt,
                   .decodes = view.state == SequenceState::kDecode};
    }
  };
  const auto needs_ns = [&](std::uint64_t id) {
    const Sent& one = sent[id];
    const Begun own = begun.contains(id) ? begun[id] : Begun{};
    std::vector<std::pair<std::int64_t, std::int64_t>> others;  // length, outputs left
    for (const auto& [other, has] : begun) {
      if (other == id || !has.decodes || harness.EndOf(other).has_value()) continue;
      others.emplace_back(sent[other].prompt + has.made, sent[other].outputs - has.made);
    }
    std::int64_t ns = 0, step = 0;
    const auto beside = [&] {
      std::int64_t sum = fixed;
      for (const auto& [length, left] : others) sum += left > step ? decode_ns(length + step) : 0;
      ++step;
      return sum;
    };
    const auto chunk = std::int64_t{256} - static_cast<std::int64_t>(others.size());
    for (std::int64_t at = own.computed; at < one.prompt; at += chunk) {
      ns += beside() + chunk_ns(at, std::min(chunk, one.prompt - at));
    }
    for (std::int64_t i = std::max<std::int64_t>(own.made, 1); i < one.outputs; ++i) {
      ns += beside() + decode_ns(one.prompt + i);
    }
    return ns;
  };
  Mix mix;
  std::set<std::uint64_t> ended;
  for (std::uint64_t id = 1; id <= 60 || harness.core.live_requests() > 0;) {
    look();
    while (id <= 60 && (harness.core.live_requests() < 4 || random.OneIn(6))) {
      Sent& one = sent[id];
      one.prompt = static_cast<std::int64_t>(random.Between(4, random.OneIn(4) ? 3000 : 200));
      one.outputs = static_cast<std::int64_t>(random.Between(1, 60));
      one.deadline = harness.now_ns +
                     static_cast<std::int64_t>(random.Between(needs_ns(id) / 2, 6 * needs_ns(id)));
      TokenizedRequest request = LiveRequest(id, static_cast<std::uint32_t>(one.prompt),
                                             static_cast<std::uint32_t>(one.outputs));
      request.stop.stop_tokens.clear();
      request.deadline_ns = one.deadline;
      harness.core.Submit(harness.now_ns, request);
      ++id;
    }
    const StallReason stall = harness.Plan();
    for (const auto& [counter, one] : sent) {
      if (ended.contains(counter)) continue;
      const std::optional<RequestEnd> end = harness.EndOf(counter);
      if (!end.has_value()) continue;
      ended.insert(counter);
      if (!absl::IsDeadlineExceeded(end->status) || harness.now_ns >= one.deadline) continue;
      const bool could = harness.now_ns + needs_ns(counter) <= one.deadline;
      const bool is_drop = harness.TokensOf(counter) == 0;
      ++(is_drop ? mix.dropped : mix.ended);
      (is_drop ? mix.could_start : mix.could_go_on) += could;
    }
    if (stall != StallReason::kNone && harness.plans.empty()) continue;
    harness.Answer();
  }
  return mix;
}

TEST(Forecast, WhoIsDroppedCouldNotHaveMetItsDeadline) {
  Mix all;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    const Mix mix = DropsOf(seed);
    all.dropped += mix.dropped;
    all.ended += mix.ended;
    all.could_start += mix.could_start;
    all.could_go_on += mix.could_go_on;
  }
  std::printf(
      "in 1,000 mixes %d dropped before and %d after their first token; %d and %d of them could "
      "have "
      "met their deadline\n",
      all.dropped, all.ended, all.could_start, all.could_go_on);
  EXPECT_GT(all.dropped, 1000);
  EXPECT_GT(all.ended, 1000);
  EXPECT_LE(all.could_start * 100, all.dropped);
  EXPECT_LE(all.could_go_on * 100, all.ended);
}

TEST(Forecast, NobodyIsRefusedWhilePlacesAreFree) {
  CoreHarness harness({.max_seqs = 64, .max_wait_ns = 1'000'000'000}, ForecastGroup());
  harness.step_ns = [](std::uint32_t prefill, std::uint32_t decodes) {
    return 3'000'000 + std::int64_t{30'000} * prefill + std::int64_t{100'000} * decodes;
  };
  harness.Submit(1, 20, 300);
  for (int i = 0; i < 200; ++i) {
    harness.Plan();
    harness.Answer();
  }
  for (std::uint64_t id = 10; id < 30; ++id) {
    harness.Submit(id, 150, 400);
    EXPECT_FALSE(harness.EndOf(id).has_value()) << id;
  }
}

// Steps of 100 ms, so that none of the eight can make its 1,000 tokens within 60 s.
std::int64_t SlowNs(const worker::Batch&) { return 100'000'000; }

void RunSteps(CoreHarness& harness, int steps) {
  for (int i = 0; i < steps; ++i) {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }
}

TEST(Forecast, TheServersOwnLimitEndsARequestAndPlansNothing) {
  CoreHarness harness({}, ForecastGroup());
  harness.batch_ns = SlowNs;
  const auto submit = [&](std::uint64_t id) {
    TokenizedRequest request = LiveRequest(id, 4, 1000);
    request.stop.stop_tokens.clear();
    request.deadline_ns = 60'000'000'000;
    request.deadline_absent = true;
    harness.core.Submit(harness.now_ns, request);
  };
  for (const std::uint64_t id : {1, 2}) submit(id);
  RunSteps(harness, 40);  // the forecast knows the steps
  for (std::uint64_t id = 3; id <= 8; ++id) submit(id);
  RunSteps(harness, 4);
  for (std::uint64_t id = 1; id <= 8; ++id) EXPECT_GT(harness.TokensOf(id), 0) << id;
  while (harness.core.live_requests() > 0) {
    const bool over = harness.now_ns >= 60'000'000'000;
    if (harness.Plan() == StallReason::kNone) harness.Answer();
    ASSERT_EQ(harness.core.live_requests(), over ? 0u : 8u);
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(harness.EndOf(8)->status));
  EXPECT_EQ(harness.core.Snapshot().counters.ended_late, 0u);
}

TEST(Forecast, ARequestWithoutADeadlineNeverWaitsForThoseThatHaveOne) {
  CoreHarness harness({}, ForecastGroup());
  harness.batch_ns = [](const worker::Batch& batch) {
    return static_cast<std::int64_t>(1'000'000 + 1'000'000 * batch.items.size());
  };
  for (std::uint64_t id = 100; id < 200; ++id) {  // the forecast learns what a row costs
    harness.Submit(id, 4, 1 + id % 7);
    RunSteps(harness, 2);
  }
  harness.RunAll();
  const auto submit = [&](std::uint64_t id, std::optional<std::int64_t> ms) {
    TokenizedRequest request = LiveRequest(id, 4, 1000);
    request.stop.stop_tokens.clear();
    if (ms.has_value()) request.deadline_ns = harness.now_ns + *ms * 1'000'000;
    harness.core.Submit(harness.now_ns, request);
  };
  for (const std::uint64_t id : {1, 2, 3}) submit(id, 3'800);
  RunSteps(harness, 10);
  submit(4, 50'000);
  RunSteps(harness, 4);
  // By the forecast the others take 3.6 s as they are, and 3.9 s beside one more.
  EXPECT_EQ(harness.TokensOf(4), 0u);
  submit(5, std::nullopt);
  RunSteps(harness, 4);
  EXPECT_GT(harness.TokensOf(5), 0u);
}

// The time of ThisCpuNs on a machine that others use, too: for some steps all are slower or faster,
// by up to a third, and each is by up to a fifth.
class NoisyCpu {
 public:
  std::int64_t operator()(const worker::Batch& batch) {
    if (left_-- == 0) {
      left_ = 20 + random_.Below(60);
      speed_ = 0.7 + 0.6e-3 * random_.Below(1000);
    }
    const double own = 0.8 + 0.4e-3 * random_.Below(1000);
    return static_cast<std::int64_t>(static_cast<double>(ThisCpuNs(batch)) * speed_ * own);
  }

 private:
  testing::Random random_{12};
  std::uint32_t left_ = 0;
  double speed_ = 1;
};

// The requests per second that are served within 4 s, of `rate` that arrive. With fair share
// half of them are one tenant's, a quarter another's, and an eighth each of two more.
double Goodput(const char* policy, bool fair_share, double rate) {
  CoreHarness harness({.fair_share = fair_share}, ForecastGroup(), policy);
  harness.batch_ns = NoisyCpu();
  testing::Random random(11);
  const auto uniform = [&] { return (random.Below(1 << 30) + 0.5) / (1 << 30); };
  constexpr std::int64_t kEnd = 60'000'000'000;
  double next_ns = 0;
  int met = 0;
  std::uint64_t id = 0;
  while (harness.now_ns < kEnd) {
    while (next_ns <= static_cast<double>(harness.now_ns)) {
      TokenizedRequest request = LiveRequest(++id, 130, 96);
      request.deadline_ns = static_cast<std::int64_t>(next_ns) + 4'000'000'000;
      if (fair_share) request.tenant = std::string(1, 'a' + std::countr_zero(id | 8));
      harness.core.Submit(harness.now_ns, request);
      next_ns -= 1e9 / rate * std::log(uniform());
    }
    if (harness.Plan() == StallReason::kNone || !harness.plans.empty()) {
      harness.Answer();
    } else {
      harness.now_ns = static_cast<std::int64_t>(next_ns) + 1;
    }
    harness.TakeEvents();
    for (const auto& [counter, events] : harness.events) {
      for (const EngineEvent& event : events) {
        const auto* end = std::get_if<RequestEnd>(&event);
        met += end != nullptr && end->status.ok();
      }
    }
    harness.events.clear();
  }
  return met * 1e9 / static_cast<double>(kEnd);
}

void ExpectGoodputHolds(bool fair_share) {
  for (const absl::string_view name : PolicyNames()) {
    const std::string policy(name);
    double peak = 0, at_peak = 0;
    std::map<double, double> overloads;
    for (const double rate : {4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 45.0}) {
      const double goodput = Goodput(policy.c_str(), fair_share, rate);
      if (goodput > peak) at_peak = rate;
      peak = std::max(peak, goodput);
      if (rate > 8) overloads[rate] = goodput;
    }
    std::printf("%s%s: %.2f requests/s in time at the peak (%.0f/s)\n", policy.c_str(),
                fair_share ? " and fair share" : "", peak, at_peak);
    for (const auto& [rate, goodput] : overloads) {
      std::printf("    %.2f at %.0f/s\n", goodput, rate);
      EXPECT_GE(goodput, 0.8 * peak);
    }
  }
}

TEST(Forecast, GoodputHoldsAtFiveTimesTheCapacityUnderEveryPolicy) { ExpectGoodputHolds(false); }

TEST(Forecast, GoodputHoldsUnderFairShareToo) { ExpectGoodputHolds(true); }

// Clients that leave max_tokens out would take minutes if they made as many tokens as they may.
TEST(Forecast, DeadlinesOfUnknownLengthsAreMet) {
  for (const bool others : {false, true}) {
    CoreHarness harness({}, ForecastGroup());
    harness.step_ns = [](std::uint32_t, std::uint32_t) { return 10'000'000; };
    harness.token_of = [](const worker::BatchItem&, std::uint32_t output) {
      return output == 99 ? kStop : 1;
    };
    const auto submit = [&](std::uint64_t id, bool hurried) {
      TokenizedRequest request = LiveRequest(id, 20, 16'000);
      request.max_tokens_absent = true;
      if (hurried) request.deadline_ns = harness.now_ns + 10'000'000'000;
      harness.core.Submit(harness.now_ns, request);
    };
    for (std::uint64_t id = 1; others && id <= 4; ++id) submit(id, false);
    for (std::uint64_t id = 100; id < 164; ++id) submit(id, true);
    harness.RunAll();
    int met = 0;
    for (std::uint64_t id = 100; id < 164; ++id) met += harness.EndOf(id)->status.ok();
    EXPECT_EQ(met, 64) << others;
  }
}

// One answer in five of a class is long, so the mean one takes more than the deadline, and most
// take a fraction of it.
TEST(Forecast, DeadlinesAreMetWhereAFewAnswersAreVeryLong) {
  CoreHarness harness({}, ForecastGroup());
  harness.step_ns = [](std::uint32_t, std::uint32_t) { return 10'000'000; };
  harness.token_of = [](const worker::BatchItem& item, std::uint32_t output) {
    return output + 1 == (item.sampling->seed % 5 == 0 ? 3'000 : 20) ? kStop : 1;
  };
  const auto submit = [&](std::uint64_t id, std::uint64_t seed, bool hurried) {
    TokenizedRequest request = LiveRequest(id, 20, 4'000);
    request.sampling.seed = seed;
    if (hurried) request.deadline_ns = harness.now_ns + 1'000'000'000;
    harness.core.Submit(harness.now_ns, request);
  };
  for (std::uint64_t id = 1; id <= 100; ++id) submit(id, id, false);
  harness.RunAll();
  for (std::uint64_t id = 1001; id <= 1064; ++id) submit(id, 1, true);
  harness.RunAll();
  int met = 0;
  for (std::uint64_t id = 1001; id <= 1064; ++id) met += harness.EndOf(id)->status.ok();
  EXPECT_EQ(met, 64);
}

}  // namespace
}  // namespace flotilla::scheduler
