// Speed of every op on every instruction path, with the shapes of SmolLM2-135M.
// Built by default, run by hand:
//   kernels_benchmark --benchmark_filter=matmul
// "op/s" counts a multiply-add as two; "bytes/s" counts what an op reads.
#include <benchmark/benchmark.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>

#include "tests/kernels/workloads.h"

namespace flotilla::kernels {
namespace {

void Register(const Workload& workload, const Ops& ops) {
  const std::string name = workload.name + "/" + std::string(ops.name);
  benchmark::RegisterBenchmark(name.c_str(), [workload, &ops](benchmark::State& state) {
    const std::function<void(const Ops&)> run = workload.make();
    run(ops);  // touches the memory
    for (auto _ : state) run(ops);
    const double calls = static_cast<double>(state.iterations());
    state.counters["op/s"] =
        benchmark::Counter(workload.operations * calls, benchmark::Counter::kIsRate);
    state.counters["bytes/s"] =
        benchmark::Counter(workload.bytes * calls, benchmark::Counter::kIsRate);
  });
}

}  // namespace
}  // namespace flotilla::kernels

int main(int argc, char** argv) {
  using namespace flotilla::kernels;
  benchmark::Initialize(&argc, argv);
  for (const Workload& workload : Workloads()) {
    for (const Isa isa : DetectIsas()) Register(workload, GetOps(isa));
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
