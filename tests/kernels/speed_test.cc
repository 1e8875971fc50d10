// Every vector op is at least three times as fast as its reference. The two are timed in turns,
// each by its best call, so that a busy machine slows both. A workload that fails is tried again
// before it counts.
#include <algorithm>
#include <chrono>
#include <limits>

#include "tests/kernels/kernel_fixtures.h"
#include "tests/kernels/workloads.h"

namespace flotilla::kernels {
namespace {

using Clock = std::chrono::steady_clock;

// Returns the seconds of one call: the mean of as many calls as take about `budget` seconds.
double SecondsPerCall(const std::function<void(const Ops&)>& run, const Ops& ops, double budget) {
  int calls = 0;
  const Clock::time_point start = Clock::now();
  double elapsed = 0;
  do {
    run(ops);
    ++calls;
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  } while (elapsed < budget);
  return elapsed / calls;
}

// The shortest times of a call, in seconds.
struct Shortest {
  double fast = std::numeric_limits<double>::infinity();
  double slow = std::numeric_limits<double>::infinity();

  void Measure(const std::function<void(const Ops&)>& run, const Ops& ops, const Ops& reference) {
    for (int round = 0; round < 5; ++round) {
      fast = std::min(fast, SecondsPerCall(run, ops, 2e-4));
      slow = std::min(slow, SecondsPerCall(run, reference, 2e-4));
    }
  }
  double ratio() const { return slow / fast; }
};

class SpeedTest : public IsaTest {};
FLOTILLA_FOR_EACH_ISA(SpeedTest);

TEST_P(SpeedTest, ThreeTimesTheReference) {
  if (GetParam() == Isa::kReference) return;
  if (!kTimed) GTEST_SKIP() << "timing means something in plain release builds only";
  for (const Workload& workload : Workloads()) {
    // Such a workload reads 18 MB of weights. Memory limits its speed, and the reference takes
    // seconds.
    if (workload.operations > 5e7 && workload.bytes > 1e7) continue;
    const std::function<void(const Ops&)> run = workload.make();
    // A neighbour on the other half of a core may halve either speed for seconds. The shortest
    // times of all attempts count, so that no single lucky attempt passes.
    Shortest times;
    const Clock::time_point start = Clock::now();
    do {
      times.Measure(run, ops(), reference());
    } while (times.ratio() < 3 && Clock::now() - start < std::chrono::seconds(20));
    EXPECT_GE(times.ratio(), 3) << workload.name;
    RecordProperty(workload.name, std::to_string(times.ratio()));
  }
}

}  // namespace
}  // namespace flotilla::kernels
