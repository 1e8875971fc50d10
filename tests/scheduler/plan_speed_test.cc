// What a plan and an arrival cost. With a full queue a plan takes at most 100 microseconds, and its
// time does not grow with the cached prefixes of requests that wait. Comparisons time the plans of
// two cores in turns, each by its shortest, so that a busy machine slows both. A test that fails is
// tried again before it counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "tests/scheduler/core_harness.h"

namespace flotilla::scheduler {
namespace {

using Clock = std::chrono::steady_clock;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
constexpr bool kTimed = false;
#else
constexpr bool kTimed = true;
#endif

ExecutorDescription PlanSpeedGroup(std::uint32_t blocks) {
  ExecutorDescription group = testing::FakeExecutorOptions::DefaultDescription();
  group.max_context = 200'000;
  group.block_count = blocks + 1;
  return group;
}

// A core in which one request decodes, and five requests wait for blocks. `cached` tokens of each
// are in the prefix cache.
class Waiting {
 public:
  Waiting(std::uint32_t cached, const char* policy)
      : harness_({.max_queued_tokens = 1u << 30}, PlanSpeedGroup(cached / 16 + 200), policy) {
    harness_.core.Submit(0, CoreHarness::Request(1, cached, 2));
    harness_.RunAll();
    harness_.Submit(2, 16, 2000);
    for (int plan = 0; plan < 2; ++plan) Step();
    for (std::uint64_t k = 0; k < 5; ++k) {
      TokenizedRequest request = CoreHarness::Request(1, cached, 3100);
      request.id.counter = 100 + k;
      request.deadline_ns = std::int64_t{1} << 60;
      for (std::uint64_t i = 0; i < 32; ++i) {
        request.prompt.push_back(static_cast<TokenId>(k * 40 + i));
      }
      harness_.core.Submit(0, request);
    }
    EXPECT_EQ(harness_.core.Snapshot().load.waiting_requests, 5u);
  }

  // Makes and answers a plan. Returns how long it took to make.
  std::int64_t Step() {
    const Clock::time_point start = Clock::now();
    PlanOutcome outcome = harness_.core.Plan(0);
    const Clock::duration took = Clock::now() - start;
    if (!outcome.plan.has_value()) return std::numeric_limits<std::int64_t>::max();
    harness_.plans.push_back(*std::move(outcome.plan));
    harness_.Answer();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
  }

 private:
  CoreHarness harness_;
};

class PlanSpeed : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(, PlanSpeed, ::testing::Values("priority", "edf"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(PlanSpeed, APlanCostsTheSameWhetherWaitingPrefixesAreShortOrLong) {
  if (!kTimed) GTEST_SKIP() << "timing means something in plain release builds only";
  double ratio = 0;
  for (int attempt = 0; attempt < 5; ++attempt) {
    Waiting few(1'000, GetParam()), many(64'000, GetParam());
    std::int64_t least_few = std::numeric_limits<std::int64_t>::max(), least_many = least_few;
    for (int plan = 0; plan < 200; ++plan) {
      least_few = std::min(least_few, few.Step());
      least_many = std::min(least_many, many.Step());
    }
    ratio = static_cast<double>(least_many) / static_cast<double>(least_few);
    if (ratio <= 1.5) break;
  }
  RecordProperty("ratio", std::to_string(ratio));
  EXPECT_LE(ratio, 1.5);
}

// The time that this thread has computed. Other work on the machine does not count.
std::int64_t ThreadCpuNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

struct Queues {
  const char* name;
  const char* policy;
  bool fair_share = false;
  // The length of each answer. Long answers keep all places taken; short ones let requests start
  // and end in every plan.
  std::uint32_t max_tokens = 4'000;
  std::uint64_t tenants = 8;
};

// A core with default options. Every place is taken by a request that decodes after 2,000 tokens,
// and the queue takes no request more. Steps may take time: that of ThisCpuNs.
class FullQueues {
 public:
  FullQueues(const Queues& queues, bool timed)
      : queues_(queues),
        timed_(timed),
        harness_({.max_queued_tokens = 1u << 30,
                  .max_wait_ns = std::int64_t{1} << 60,
                  .fair_share = queues.fair_share},
                 Machine(), queues.policy) {
    for (std::uint32_t i = 0; i < kPlaces; ++i) Submit(2'000);
    while (harness_.core.Snapshot().load.waiting_requests > 0) Step();
    Fill();
  }

  // The median time of so many plans. The queue is full before each of them.
  std::int64_t MedianNs(int plans) {
    std::vector<std::int64_t> times;
    for (int plan = 0; plan < plans; ++plan) {
      Fill();
      times.push_back(Step());
    }
    std::nth_element(times.begin(), times.begin() + plans / 2, times.end());
    return times[plans / 2];
  }

  // The median time in which a request joined the queue while at least half of it was filled. Its
  // wait is predicted then, since there is a limit, which no wait comes near.
  std::int64_t MedianArrivalNs() {
    std::nth_element(arrivals_.begin(), arrivals_.begin() + arrivals_.size() / 2, arrivals_.end());
    return arrivals_[arrivals_.size() / 2];
  }

  std::uint64_t started() const { return next_ - harness_.core.Snapshot().load.waiting_requests; }

 private:
  static constexpr std::uint32_t kPlaces = 64, kQueue = 4096;  // the defaults

  static ExecutorDescription Machine() {
    ExecutorDescription machine = testing::FakeExecutorOptions::DefaultDescription();
    machine.max_sequences = 2 * kPlaces + 1;
    machine.block_count = 1 << 16;
    machine.prefill_ns_per_token = kThisCpuPrefillNs;
    machine.decode_ns_per_step = kThisCpuDecodeNs;
    return machine;
  }

  // Each request has one of the tenants, and a length, priority and deadline of its own.
  void Submit(std::uint32_t tokens) {
    TokenizedRequest request = CoreHarness::Request(next_, tokens, queues_.max_tokens);
    request.tenant = std::to_string(next_ % queues_.tenants);
    request.priority = static_cast<std::int32_t>(next_ * 7 % 5);
    request.deadline_ns = (std::int64_t{1} << 60) + static_cast<std::int64_t>(next_ * 31 % 1000);
    ++next_;
    const bool many_wait = harness_.core.Snapshot().load.waiting_requests >= kQueue / 2;
    const std::int64_t start = ThreadCpuNs();
    harness_.core.Submit(harness_.now_ns, request);
    if (many_wait) arrivals_.push_back(ThreadCpuNs() - start);
    harness_.core.TakeEvents();
  }

  void Fill() {
    while (harness_.core.Snapshot().load.waiting_requests < kQueue) {
      Submit(static_cast<std::uint32_t>(20 + next_ * 13 % 200));
    }
  }

  // Makes and answers a plan. Returns how long it took to make.
  std::int64_t Step() {
    const std::int64_t start = ThreadCpuNs();
    PlanOutcome outcome = harness_.core.Plan(harness_.now_ns);
    const std::int64_t took = ThreadCpuNs() - start;
    const bool waits = !outcome.plan.has_value();
    if (!waits) harness_.plans.push_back(*std::move(outcome.plan));
    if (harness_.plans.size() > (waits ? 0 : 1)) Answer();
    return took;
  }

  // Applies a result, without the checks of CoreHarness::Answer, which take longer than plans.
  void Answer() {
    const StepPlan plan = std::move(harness_.plans.front());
    harness_.plans.pop_front();
    const worker::Batch batch = harness_.worker->Apply(plan).value();
    const std::int64_t took = timed_ ? ThisCpuNs(batch) : 0;
    harness_.now_ns += took;
    StepResult result =
        harness_.worker->Complete(plan.step, testing::FakeOutputs(batch, 1000)).value();
    result.timings.rows = static_cast<std::uint32_t>(batch.tokens.size());
    result.timings.decode_rows = batch.decode_rows;
    result.timings.compute_ns = took;
    EXPECT_EQ(harness_.core.Apply(result), absl::OkStatus());
    harness_.core.TakeEvents();
  }

  const Queues queues_;
  const bool timed_;
  std::uint64_t next_ = 1;
  std::vector<std::int64_t> arrivals_;
  CoreHarness harness_;
};

class FullQueuesTest : public ::testing::TestWithParam<std::tuple<Queues, bool>> {};

INSTANTIATE_TEST_SUITE_P(
    PlanSpeed, FullQueuesTest,
    ::testing::Combine(::testing::Values(Queues{"Fcfs", "fcfs"}, Queues{"Priority", "priority"},
                                         Queues{"Srpt", "srpt"}, Queues{"Edf", "edf"},
                                         Queues{"FairShare", "fcfs", true},
                                         Queues{"ShortAnswers", "priority", false, 16},
                                         Queues{"ShortAnswersFairShare", "srpt", true, 16},
                                         Queues{"ManyTenants", "fcfs", true, 4'000, 4'096},
                                         Queues{"ShortAnswersManyTenants", "fcfs", true, 16,
                                                4'096}),
                       ::testing::Bool()),
    [](const auto& test) {
      const bool timed = std::get<1>(test.param);
      return std::string(std::get<0>(test.param).name) + (timed ? "Timed" : "");
    });

// The prediction of the wait of a request that arrives looks at each request that waits.
TEST_P(FullQueuesTest, APlanTakesAtMostAHundredMicrosecondsAndAnArrivalAMillisecond) {
  if (!kTimed) GTEST_SKIP() << "timing means something in plain release builds only";
  std::int64_t best_ns = std::numeric_limits<std::int64_t>::max();
  const auto& [load, timed] = GetParam();
  FullQueues queues(load, timed);
  const std::uint64_t enough = queues.started() + (load.max_tokens < 100 ? 200 : 0);
  // A shared machine may be slow for some seconds.
  for (int attempt = 0; attempt < 100; ++attempt) {
    best_ns = std::min(best_ns, queues.MedianNs(100));
    if (best_ns <= 100'000 && queues.started() >= enough) break;
  }
  RecordProperty("microseconds", std::to_string(best_ns / 1000));
  EXPECT_LE(best_ns, 100'000);
  std::int64_t arrival_ns = queues.MedianArrivalNs();
  for (int attempt = 0; attempt < 4 && arrival_ns > 1'000'000; ++attempt) {
    arrival_ns = std::min(arrival_ns, FullQueues(load, timed).MedianArrivalNs());
  }
  RecordProperty("microseconds_of_an_arrival", std::to_string(arrival_ns / 1000));
  EXPECT_LE(arrival_ns, 1'000'000);
  EXPECT_GE(queues.started(), enough);
}

}  // namespace
}  // namespace flotilla::scheduler
