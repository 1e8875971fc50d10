// What the scheduler core costs in steps of nothing but decodes.
//
//   scheduler_benchmark [sequences, default 256] [tokens each, default 8000]
//
// Prints the median, 99th percentile and worst time of making a plan and of
// applying a result, and the mean and largest size of a plan on the wire, with and
// without the prefix cache.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "common/rt/clock.h"
#include "proto/codec/plan.h"
#include "tests/support/decode_load.h"

namespace flotilla {
namespace {

constexpr int kSteps = 2000;

struct Times {
  std::vector<std::int64_t> ns;
  void Print(const char* what) {
    std::sort(ns.begin(), ns.end());
    std::printf("  %-6s median %7.1f us, p99 %7.1f us, worst %7.1f us\n", what,
                1e-3 * static_cast<double>(ns[ns.size() / 2]),
                1e-3 * static_cast<double>(ns[ns.size() * 99 / 100]),
                1e-3 * static_cast<double>(ns.back()));
  }
};

struct Sizes {
  std::size_t sum = 0, largest = 0;
  int plans = 0;
  void Add(const StepPlan& plan) {
    v1::StepPlan proto;
    ToProto(plan, &proto);
    const std::size_t bytes = proto.ByteSizeLong();
    sum += bytes;
    largest = std::max(largest, bytes);
    ++plans;
  }
  void Print() const {
    std::printf("  wire   mean   %7.1f B,  largest %zu B\n",
                static_cast<double>(sum) / std::max(plans, 1), largest);
  }
};

void Bench(std::uint32_t sequences, std::uint32_t tokens, bool prefix_cache) {
  const SteadyClock clock;
  testing::DecodeLoad load({sequences, tokens, kSteps, prefix_cache});
  while (load.prefilling()) load.Step();
  Times plan, apply;
  Sizes sizes;
  for (int step = 0; step < kSteps; ++step) {
    const std::int64_t start = clock.NowNs();
    PlanOutcome outcome = load.core().Plan(0);
    plan.ns.push_back(clock.NowNs() - start);
    sizes.Add(*outcome.plan);
    const auto result = load.Execute(*std::move(outcome.plan));
    const std::int64_t before = clock.NowNs();
    load.Apply(*result);
    apply.ns.push_back(clock.NowNs() - before);
  }
  std::printf("%u sequences of %u tokens, prefix cache %s\n", sequences, tokens,
              prefix_cache ? "on" : "off");
  plan.Print("plan");
  apply.Print("apply");
  sizes.Print();
}

}  // namespace
}  // namespace flotilla

int main(int argc, char** argv) {
  const auto argument = [&](int index, std::uint32_t fallback) {
    return argc > index ? static_cast<std::uint32_t>(std::max(1, std::atoi(argv[index])))
                        : fallback;
  };
  for (const bool prefix_cache : {false, true}) {
    flotilla::Bench(argument(1, 256), argument(2, 8000), prefix_cache);
  }
}
