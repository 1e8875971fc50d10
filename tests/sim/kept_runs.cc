#include "tests/sim/kept_runs.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace flotilla::testing {
namespace {

constexpr std::uint64_t kKept = 200;

// By seed and steps.
struct Kept {
  absl::Mutex mutex;
  std::map<std::pair<std::uint64_t, std::uint64_t>, SimRun> runs ABSL_GUARDED_BY(mutex);
};

}  // namespace

SimRun KeptRun(std::uint64_t seed, std::uint64_t steps, std::uint64_t large_steps) {
  static Kept* const kept = new Kept;
  Simulation simulation(seed);
  SimRun run;
  run.steps = simulation.large() ? large_steps : steps;
  const std::pair<std::uint64_t, std::uint64_t> key(seed, run.steps);
  if (seed <= kKept) {
    const absl::MutexLock lock(&kept->mutex);
    const auto found = kept->runs.find(key);
    if (found != kept->runs.end()) return found->second;
  }
  run.status = simulation.Run(run.steps);
  run.trace_hash = simulation.trace_hash();
  run.plan_hash = simulation.plan_hash();
  run.coverage = simulation.coverage();
  if (seed <= kKept) {
    const absl::MutexLock lock(&kept->mutex);
    kept->runs.emplace(key, run);
  }
  return run;
}

}  // namespace flotilla::testing
