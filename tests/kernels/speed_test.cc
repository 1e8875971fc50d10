// Every vector op is at least three times as fast as its reference. The two are timed in turns,
// each by its best call, so that a busy machine slows both. A workload is tried several times.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <vector>

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
    // A neighbour on the other half of a core may halve both speeds for seconds. An attempt takes
    // milliseconds, so both are measured in one state of the machine, and the median of attempts
    // counts, so that no single lucky one passes.
    std::vector<double> ratios;
    const auto median = [&ratios] {
      const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
      std::nth_element(ratios.begin(), middle, ratios.end());
      return *middle;
    };
    const Clock::time_point start = Clock::now();
    Shortest times;
    do {
      times = Shortest();
      times.Measure(run, ops(), reference());
      ratios.push_back(times.ratio());
      // An attempt that is far from the bound says enough.
    } while (((ratios.size() < 5 && ratios.front() < 6) || median() < 3) &&
             Clock::now() - start < std::chrono::seconds(20));
    EXPECT_GE(median(), 3) << workload.name << ": in the last of " << ratios.size()
                           << " attempts a call took " << times.fast * 1e9 << " ns, the reference "
                           << times.slow * 1e9 << " ns";
    RecordProperty(workload.name, std::to_string(median()));
  }
}

}  // namespace
}  // namespace flotilla::kernels
