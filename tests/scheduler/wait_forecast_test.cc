// Tests the predicted wait of a request against its real wait, in virtual time and under overload:
// with answers of a skewed length that end long before max_tokens, with known lengths, with little
// memory, with long prompts, with deadlines, under every policy and fair share.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/scheduler/core_harness.h"
#include "tests/support/random.h"

namespace flotilla::scheduler {
namespace {

constexpr TokenId kStopToken = 999;
constexpr std::uint32_t kMaxOutputs = 4000;
constexpr std::int64_t kMostWaitNs = 4'000'000'000;
// A fraction of a shorter wait says little, so it is judged by the milliseconds that it is off.
constexpr double kShortNs = 200e6;
// Who starts with the next step waits no longer.
constexpr double kNextStepNs = 20e6;

struct Load {
  const char* name = "";
  const char* policy = "fcfs";
  double overload = 2;         // arrivals for each request that can be served
  std::uint32_t prompt = 100;  // tokens, in the mean
  double outputs = 100;        // the same
  double sigma = 1;            // of the logarithm of the outputs
  bool known = false;          // max_tokens is the length of the answer
  bool deadlines = false;      // of 2 to 12 seconds
  std::uint32_t blocks = 8000;
  // The arrivals of tenants, and of classes of priority, the highest first.
  std::vector<std::uint32_t> tenants = {1}, classes = {1};
  std::uint32_t measured_class = 0;
  // The most that predictions are off, in the median and at p90.
  double median_error = 0.25, p90_factor = 2;

  bool fair() const { return tenants.size() > 1; }
};

std::ostream& operator<<(std::ostream& out, const Load& load) { return out << load.name; }

// Serves a load on a machine that reads its weights in 3 ms.
class Server {
 public:
  explicit Server(const Load& load, std::int64_t max_wait_ns)
      : harness(
            {.max_queued_tokens = 1 << 24, .max_wait_ns = max_wait_ns, .fair_share = load.fair()},
            Group(load.blocks), load.policy),
        load_(load),
        random_(7) {
    harness.step_ns = [](std::uint32_t prefill, std::uint32_t decodes) {
      return 3'000'000 + std::int64_t{30'000} * prefill + std::int64_t{100'000} * decodes;
    };
    harness.token_of = [this](const worker::BatchItem& item, std::uint32_t output) {
      return output + 1 >= outputs_[item.sampling->seed] ? kStopToken
                                                         : static_cast<TokenId>(output % 900);
    };
  }

  struct Sent {
    std::int64_t at = 0, predicted = 0;
    std::uint32_t of_class = 0;
    bool learned = false;  // the forecast had seen enough answers
  };

  double Uniform() { return (random_.Below(1 << 30) + 0.5) / (1 << 30); }

  void Submit() {
    TokenizedRequest request = CoreHarness::Request(++id_, 1, kMaxOutputs);
    const std::uint32_t prompt = random_.Between(load_.prompt / 2, load_.prompt * 3 / 2);
    request.prompt.clear();
    for (std::uint64_t i = 0; i < prompt; ++i) {  // shares no block with that of another id
      request.prompt.push_back(static_cast<TokenId>((id_ * 7919 + i * 31 + id_ * i) % 900));
    }
    const double normal =
        std::sqrt(-2 * std::log(Uniform())) * std::cos(6.283185307179586 * Uniform());
    const double outputs =
        load_.outputs * std::exp(load_.sigma * normal - load_.sigma * load_.sigma / 2);
    outputs_[id_] = static_cast<std::uint32_t>(std::clamp(outputs, 1.0, double{kMaxOutputs}));
    request.sampling.seed = id_;
    if (load_.known) {
      request.stop.max_tokens = outputs_[id_];
      request.stop.stop_tokens.clear();
    } else {
      request.stop.stop_tokens = {kStopToken};
    }
    request.tenant = std::to_string(Draw(load_.tenants));
    if (load_.deadlines) {
      request.deadline_ns =
          harness.now_ns + std::int64_t{1'000'000} * random_.Between(2'000, 12'000);
    }
    const std::uint32_t of_class = Draw(load_.classes);
    request.priority = -static_cast<std::int32_t>(of_class);
    sent[id_] = {.at = harness.now_ns,
                 .predicted = harness.core.PredictWaitNs(request),
                 .of_class = of_class,
                 .learned = ended >= 200};
    harness.core.Submit(harness.now_ns, request);
  }

  // Plans and answers a step, if there is something to do.
  bool Step() {
    if (harness.Plan() != StallReason::kNone) return false;
    for (const OpenSequence& open : CoreHarness::OpsOf<OpenSequence>(harness.plans.back())) {
      started.try_emplace(open.request.counter, harness.now_ns);
    }
    harness.Answer();
    for (const auto& [id, events] : harness.events) {
      for (const EngineEvent& event : events) {
        const auto* end = std::get_if<RequestEnd>(&event);
        ended += end != nullptr && end->status.ok();
      }
    }
    harness.events.clear();
    return true;
  }

  CoreHarness harness;
  std::map<std::uint64_t, Sent> sent;
  std::map<std::uint64_t, std::int64_t> started;
  int ended = 0;

 private:
  static ExecutorDescription Group(std::uint32_t blocks) {
    ExecutorDescription group = testing::FakeExecutorOptions::DefaultDescription();
    group.vocab_size = 1000;
    group.max_context = 8192;
    group.block_count = blocks + 1;
    group.max_sequences = 512;
    group.max_step_tokens = 8192;
    return group;
  }
  std::uint32_t Draw(const std::vector<std::uint32_t>& weights) {
    std::uint32_t sum = 0;
    for (const std::uint32_t weight : weights) sum += weight;
    std::uint32_t at = random_.Below(sum), index = 0;
    while (at >= weights[index]) at -= weights[index++];
    return index;
  }

  const Load load_;
  testing::Random random_;
  std::uint64_t id_ = 0;
  std::map<std::uint64_t, std::uint32_t> outputs_;
};

// The requests per second that are served while enough wait.
double Capacity(Load load) {
  load.deadlines = false;
  Server server(load, 0);
  for (int i = 0; i < 900; ++i) server.Submit();
  while (server.ended < 200) server.Step();
  const std::int64_t begin = server.harness.now_ns;
  const int before = server.ended;
  while (server.ended < 700) server.Step();
  return (server.ended - before) * 1e9 / static_cast<double>(server.harness.now_ns - begin);
}

// How far predicted waits are off.
struct Errors {
  std::vector<double> errors, factors;  // relative to the real waits
  std::size_t too_long = 0;             // predicted more than 1.25 times as long

  void Add(double predicted, double real) {
    errors.push_back(std::abs(predicted - real) / real);
    factors.push_back(std::max(predicted / real, real / predicted));
    too_long += predicted > 1.25 * real;
  }
};

struct Waits {
  Errors all;  // those below kShortNs count as kShortNs
  Errors long_waits;
  std::vector<double> short_ms;  // what shorter ones are off
  std::vector<double> some_ms;   // of these, those that waited for more than the next step
};

double Quantile(std::vector<double> all, std::size_t percent) {
  if (all.empty()) return 0;
  std::sort(all.begin(), all.end());
  return all[all.size() * percent / 100];
}

void Print(const char* what, const Errors& of) {
  std::printf("  %5zu %s: error %3.0f %% in the median, p90 of the factor %.2f, %zu too long\n",
              of.errors.size(), what, 100 * Quantile(of.errors, 50), Quantile(of.factors, 90),
              of.too_long);
}

Waits WaitsOf(const Load& load) {
  const double capacity = Capacity(load);
  Server server(load, kMostWaitNs);
  std::int64_t next_ns = 0;
  const std::int64_t end_ns = 30'000'000'000;
  const auto next = [&] {
    next_ns -=
        static_cast<std::int64_t>(1e9 / (capacity * load.overload) * std::log(server.Uniform()));
  };
  while (server.harness.now_ns < end_ns) {
    for (; next_ns <= server.harness.now_ns; next()) server.Submit();
    if (!server.Step()) server.harness.now_ns = next_ns;
  }
  while (server.Step()) {
  }
  Waits waits;
  for (const auto& [id, start] : server.started) {
    const Server::Sent& one = server.sent[id];
    if (!one.learned || one.of_class != load.measured_class) continue;
    const auto real = static_cast<double>(start - one.at);
    const auto predicted = static_cast<double>(one.predicted);
    waits.all.Add(std::max(predicted, kShortNs), std::max(real, kShortNs));
    if (real < kShortNs) {
      const double off_ms = std::abs(predicted - real) * 1e-6;
      waits.short_ms.push_back(off_ms);
      if (std::max(predicted, real) > kNextStepNs) waits.some_ms.push_back(off_ms);
    } else {
      waits.long_waits.Add(std::max(predicted, 1e6), real);
    }
  }
  std::printf("%s, %.1f/s served:\n", load.name, capacity);
  Print("waits", waits.all);
  Print("of 200 ms and more", waits.long_waits);
  std::printf("  %5zu shorter ones: off by %.0f ms in the median, %.0f at p90\n",
              waits.short_ms.size(), Quantile(waits.short_ms, 50), Quantile(waits.short_ms, 90));
  std::printf("  %5zu of these for more than a step: %.0f and %.0f ms\n", waits.some_ms.size(),
              Quantile(waits.some_ms, 50), Quantile(waits.some_ms, 90));
  return waits;
}

class WaitForecast : public ::testing::TestWithParam<Load> {};

INSTANTIATE_TEST_SUITE_P(
    , WaitForecast,
    ::testing::Values(
        Load{.name = "fcfs", .overload = 1.2}, Load{.name = "fcfs_at_twice"},
        Load{.name = "fcfs_long_answers", .outputs = 400, .sigma = 1.3},
        Load{.name = "fcfs_long_known_answers", .outputs = 400, .sigma = 1.3, .known = true},
        Load{.name = "fcfs_known_lengths", .overload = 1.2, .known = true},
        Load{.name = "fcfs_little_memory", .blocks = 500},
        Load{.name = "fcfs_long_prompts", .prompt = 1000, .outputs = 20},
        Load{.name = "edf_without_deadlines", .policy = "edf"},
        Load{.name = "priority", .policy = "priority"},
        Load{.name = "priority_of_the_highest", .policy = "priority", .classes = {3, 1}},
        Load{.name = "fair_share", .overload = 1.2, .tenants = {5, 2, 1}},
        Load{.name = "fair_share_at_twice", .tenants = {5, 2, 1}},
        Load{.name = "fair_share_of_a_light_tenant", .tenants = {20, 20, 1}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(WaitForecast, IsWithinAQuarterInTheMedianAndTwiceAtP90) {
  const Waits waits = WaitsOf(GetParam());
  for (const Errors* of : {&waits.all, &waits.long_waits}) {
    EXPECT_GT(of->errors.size(), 300u);
    EXPECT_LE(Quantile(of->errors, 50), 0.25);
    EXPECT_LE(Quantile(of->factors, 90), 2);
  }
}

// Near the capacity most waits are short.
class ShortWaitForecast : public ::testing::TestWithParam<Load> {};

INSTANTIATE_TEST_SUITE_P(, ShortWaitForecast,
                         ::testing::Values(Load{.name = "below_the_capacity", .overload = 0.9},
                                           Load{.name = "at_the_capacity", .overload = 1}),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(ShortWaitForecast, IsOffByMilliseconds) {
  const Waits waits = WaitsOf(GetParam());
  EXPECT_GT(waits.short_ms.size(), 300u);
  EXPECT_LE(Quantile(waits.short_ms, 50), 5);
  EXPECT_LE(Quantile(waits.short_ms, 90), 100);
  EXPECT_GT(waits.some_ms.size(), 200u);
  EXPECT_LE(Quantile(waits.some_ms, 50), 40);
  EXPECT_LE(Quantile(waits.some_ms, 90), 150);
  EXPECT_LE(Quantile(waits.all.errors, 50), 0.25);
  EXPECT_LE(Quantile(waits.all.factors, 90), 2);
}

// Requests to come go first, and nothing is known of them: the prediction is a lower bound.
class LeastWaitForecast : public ::testing::TestWithParam<Load> {};

INSTANTIATE_TEST_SUITE_P(
    , LeastWaitForecast,
    ::testing::Values(
        Load{.name = "edf", .policy = "edf", .overload = 1.2, .deadlines = true, .p90_factor = 4},
        Load{.name = "edf_at_twice", .policy = "edf", .deadlines = true, .p90_factor = 4},
        Load{.name = "edf_known_lengths",
             .policy = "edf",
             .known = true,
             .deadlines = true,
             .p90_factor = 4},
        Load{.name = "srpt", .policy = "srpt", .overload = 1.2, .p90_factor = 20},
        Load{.name = "srpt_at_twice", .policy = "srpt", .median_error = 0.5, .p90_factor = 20},
        Load{.name = "priority_of_the_lowest",
             .policy = "priority",
             .overload = 1.2,
             .classes = {3, 1},
             .measured_class = 1,
             .median_error = 0.9,
             .p90_factor = 12}),
    [](const auto& test) { return std::string(test.param.name); });

TEST_P(LeastWaitForecast, IsHardlyEverTooLong) {
  const Waits waits = WaitsOf(GetParam());
  EXPECT_GT(waits.all.errors.size(), 300u);
  EXPECT_LE(10 * waits.all.too_long, waits.all.errors.size());
  EXPECT_LE(Quantile(waits.all.errors, 50), GetParam().median_error);
  EXPECT_LE(Quantile(waits.all.factors, 90), GetParam().p90_factor);
}

// Requests that wait and will miss their deadlines count, but are gone before it is their turn.
TEST(WaitForecastWithDeadlines, IsTooLongByHalfAtMostInTheMedian) {
  const Waits waits = WaitsOf({.name = "fcfs_with_deadlines", .deadlines = true});
  EXPECT_GT(waits.all.errors.size(), 300u);
  EXPECT_LE(Quantile(waits.all.errors, 50), 0.5);
  EXPECT_LE(Quantile(waits.all.factors, 90), 2);
}

// Four answers of 1,000 tokens have all places, in steps of 1 ms.
struct FourRun {
  CoreHarness harness{{.max_seqs = 4}, testing::FakeExecutorOptions::DefaultDescription()};

  FourRun() {
    harness.step_ns = [](std::uint32_t, std::uint32_t) { return std::int64_t{1'000'000}; };
  }
  TokenizedRequest Next(std::int32_t priority = 0) {
    TokenizedRequest request = CoreHarness::Request(++id, 10, 1000);
    request.priority = priority;
    return request;
  }
  void Begin(const std::function<TokenizedRequest()>& next) {
    for (int i = 0; i < 4; ++i) harness.core.Submit(harness.now_ns, next());
  }
  void Step() {
    ASSERT_EQ(harness.Plan(), StallReason::kNone);
    harness.Answer();
  }

  std::uint64_t id = 0;
};

TEST(PredictedWait, LowerClassesThatRunGiveWay) {
  FourRun four;
  four.Begin([&] { return four.Next(-1); });
  for (int i = 0; i < 100; ++i) four.Step();
  EXPECT_NEAR(static_cast<double>(four.harness.core.PredictWaitNs(four.Next(-1))), 900e6, 45e6);
  EXPECT_LE(four.harness.core.PredictWaitNs(four.Next()), 20'000'000);
}

// Half of the answers have 20 tokens and the others 1,000. Those that run have passed the 20, and
// the forecast of each is a few tokens old.
TEST(PredictedWait, AnswersThatHaveNotEndedEarlyEndLate) {
  FourRun four;
  four.harness.token_of = [](const worker::BatchItem& item, std::uint32_t output) {
    const bool is_short = item.sampling->seed % 2 == 0 && item.sampling->seed <= 200;
    return output + 1 >= (is_short ? 20 : 1000) ? kStopToken : static_cast<TokenId>(output % 900);
  };
  const auto next = [&] {
    TokenizedRequest request = four.Next();
    request.stop.stop_tokens = {kStopToken};
    request.stop.max_tokens = 2000;
    request.sampling.seed = request.id.counter;
    return request;
  };
  for (int i = 0; i < 200; ++i) four.harness.core.Submit(0, next());
  four.harness.RunAll(100'000);
  four.Begin(next);
  for (int made = 1; made < 100; ++made) {
    four.Step();
    if (made < 20) continue;
    const double real = 1e6 * (1000 - made);
    EXPECT_NEAR(static_cast<double>(four.harness.core.PredictWaitNs(next())), real, real / 20)
        << made;
  }
}

TEST(WaitUntilStart, BlocksAreWaitedForAsPlacesAre) {
  ForecastQueue queue{.sequences = 64, .blocks = 10, .rows = 256};
  queue.own.parts.fill({.steps = 10, .blocks = 4});
  for (std::uint64_t i = 1; i <= 3; ++i) {
    queue.running.emplace_back().parts.fill({.steps = 100 * i, .blocks = 3});
  }
  EXPECT_EQ(WaitUntilStart(queue).steps, 100u);
  queue.own.parts.fill({.steps = 10, .blocks = 5});
  EXPECT_EQ(WaitUntilStart(queue).steps, 200u);
  queue.own.parts.fill({.steps = 10, .blocks = 1});
  EXPECT_EQ(WaitUntilStart(queue).steps, 0u);
}

}  // namespace
}  // namespace flotilla::scheduler
