// The metrics of a worker group. docs/api.md lists them.
//
// Executors count in a WorkerProbe, and the one whose ranks are processes in a GroupProbe too. One
// thread writes them. Any thread may read, as a scrape does.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/obs/metrics.h"
#include "common/rt/clock.h"
#include "common/rt/load_progress.h"
#include "common/types/executor.h"
#include "common/types/plan.h"
#include "worker/core/watch.h"
#include "worker/exec/rank_device.h"

namespace flotilla::worker {

// What a worker group has done so far.
struct WorkerProbe {
  std::atomic<std::uint64_t> steps{0};
  std::atomic<std::uint64_t> rows{0};         // tokens through the forward
  std::atomic<std::uint64_t> decode_rows{0};  // rows of decodes
  std::atomic<std::int64_t> compute_ns{0};    // forward and sampling
  std::atomic<std::uint64_t> epochs_lost{0};
  std::atomic<std::int64_t> weight_bytes{0};
  std::atomic<std::int64_t> buffer_bytes{0};
  // What the ranks have loaded the model on; nothing before that.
  std::atomic<bool> on_cpus{false}, on_gpus{false};
  std::atomic<std::uint32_t> kv_blocks{0};  // of the pool, usable; 0: not known before the load

  void OnLoaded(const RankDevice& device, const ExecutorDescription& group) {
    on_cpus = device.on_cpus();
    on_gpus = device.on_gpus();
    kv_blocks = group.block_count - 1;
  }
  void OnStep(const StepTimings& timings) {
    ++steps;
    rows += timings.rows;
    decode_rows += timings.decode_rows;
    compute_ns += timings.compute_ns;
  }
};

// The state of the ranks of a worker group.
struct GroupProbe {
  struct Rank {
    std::atomic<bool> up{false};                // it is connected and the group has not been lost
    std::atomic<std::int64_t> heartbeat_ns{0};  // the last one seen; 0: none yet
    std::atomic<std::int64_t> cpu_ns{0};        // of all its processes so far
    std::atomic<std::int64_t> resident_bytes{0};
    std::atomic<bool> loading{false};
    std::atomic<LoadPhase> load_phase{LoadPhase::kOpen};  // these three are as LoadProgress
    std::atomic<std::uint64_t> loaded_bytes{0};
    std::atomic<std::uint64_t> load_bytes{0};
  };

  explicit GroupProbe(int count) : ranks(static_cast<std::size_t>(count)) {}

  std::vector<Rank> ranks;
  std::array<std::atomic<std::uint64_t>, kFaults> restarts{};  // [Fault]
};

// Adds the configuration of the KV pool, whose number of blocks is that of the last load. `worker`
// outlives the last Render.
void WatchKvConfig(Metrics& metrics, const std::string& kv_type, std::uint32_t block_tokens,
                   const WorkerProbe* worker);

// Reads `worker`, which outlives the last Render, at each scrape from now on.
void WatchWorker(Metrics& metrics, const WorkerProbe* worker);

// Reads `group`, which outlives the last Render, at each scrape from now on. `clock` is the
// clock of the group's heartbeats.
void WatchGroup(Metrics& metrics, const GroupProbe* group, const Clock* clock);

}  // namespace flotilla::worker
