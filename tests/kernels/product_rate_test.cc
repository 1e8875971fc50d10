// Integer products reach 65 % of the rate that the machine's own multiply-add sequence reaches in
// registers. So most of their time is products, and no time goes to the stack. Those of six-bit
// codes reach 50 %, since most of their operands take two shifts and each 16 codes have a factor.
//
// Both are timed in one process, in short windows that alternate. The best window of each counts,
// so other work on the machine matters little. A neighbour on the other thread of a core slows
// loads from its cache more than sums in registers, for seconds or minutes. So a product that fails
// is tried again, on each processor in turn, before it counts.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/kernels/kernel_fixtures.h"
#include "tests/kernels/multiply_add.h"
#include "tests/kernels/workloads.h"

namespace flotilla::kernels {
namespace {

struct Least {
  model::GgmlType format;
  double share;
};
constexpr Least kLeast[] = {
    {model::GgmlType::kQ4_1, 0.65}, {model::GgmlType::kQ8_0, 0.65}, {model::GgmlType::kQ6_K, 0.5}};
constexpr double kWindowSeconds = 1e-3;
constexpr int kWindows = 25;
constexpr std::chrono::seconds kPatience(60);  // for one product
// These sizes give weights of 92 KB (q4) and 157 KB (q8_0), which fit the second-level cache and
// not the first.
constexpr int kColumns = 256, kDepth = 576;

using Clock = std::chrono::steady_clock;

// Keeps the calling thread on one of its processors at a time, and gives all of them back.
class Processors {
 public:
  Processors() {
    sched_getaffinity(0, sizeof(all_), &all_);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &all_)) numbers_.push_back(cpu);
    }
  }
  ~Processors() { sched_setaffinity(0, sizeof(all_), &all_); }
  Processors(const Processors&) = delete;
  Processors& operator=(const Processors&) = delete;

  void Next() {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(numbers_[next_++ % numbers_.size()], &one);
    sched_setaffinity(0, sizeof(one), &one);
  }

 private:
  cpu_set_t all_;
  std::vector<int> numbers_;
  size_t next_ = 0;
};

// Returns the operations per second in one window of whole calls of `run`. Each call does
// `operations` operations.
double WindowRate(const std::function<void()>& run, double operations) {
  const Clock::time_point start = Clock::now();
  double elapsed = 0, done = 0;
  do {
    run();
    done += operations;
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  } while (elapsed < kWindowSeconds);
  return done / elapsed;
}

struct Rates {
  double product = 0, machine = 0;  // operations per second, best windows
  double share() const { return machine == 0 ? 0 : product / machine; }
};

Rates Measure(const std::function<void()>& product, double operations, Isa isa) {
  constexpr int64_t kRounds = 1000;
  const auto machine = [isa] { MultiplyAdds(isa, kRounds); };
  const double machine_operations = static_cast<double>(kRounds * MultiplyAddOperations(isa));
  Rates best;
  for (int window = 0; window < kWindows; ++window) {
    best.product = std::max(best.product, WindowRate(product, operations));
    best.machine = std::max(best.machine, WindowRate(machine, machine_operations));
  }
  return best;
}

class ProductRateTest : public IsaTest {};
FLOTILLA_FOR_EACH_ISA(ProductRateTest);

TEST_P(ProductRateTest, AShareOfTheMachinesMultiplyAdds) {
  if (GetParam() == Isa::kReference) GTEST_SKIP() << "the reference is slow on purpose";
  if (!kTimed) GTEST_SKIP() << "timing means something in plain release builds only";
  for (const auto& [format, least_share] : kLeast) {
    for (const int rows : {32, 512}) {
      const Workload workload = IntegerProduct(format, rows, kColumns, kDepth);
      const std::function<void(const Ops&)> call = workload.make();
      const auto product = [&] { call(ops()); };
      Rates rates;
      Processors processors;
      const Clock::time_point end = Clock::now() + kPatience;
      while (rates.share() < least_share && Clock::now() < end) {
        processors.Next();
        const Rates one = Measure(product, workload.operations, GetParam());
        if (one.share() > rates.share()) rates = one;
      }
      const std::string line = absl::StrFormat("%.0f of %.0f GOP/s, %.0f %%", 1e-9 * rates.product,
                                               1e-9 * rates.machine, 100 * rates.share());
      std::printf("%s: %s\n", workload.name.c_str(), line.c_str());
      RecordProperty(workload.name, line);
      EXPECT_GE(rates.share(), least_share) << workload.name;
    }
  }
}

}  // namespace
}  // namespace flotilla::kernels
