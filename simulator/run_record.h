// RunRecord: the events of one simulated run, before they are summed up.
//
// Simulator (simulator.h) and the baselines (reservation.h) fill it, and the report reads
// it. It holds values only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/types/request_outcome.h"
#include "scheduler/core/scheduler_core.h"
#include "simulator/timeline.h"
#include "simulator/virtual_group.h"
#include "simulator/workload.h"

namespace flotilla::simulator {

struct RequestRecord {
  std::int64_t arrival_ns = 0;
  std::int64_t first_token_ns = 0;  // 0: none came
  std::int64_t last_token_ns = 0;
  std::uint32_t output_tokens = 0;  // all sequences
  std::uint32_t cached_tokens = 0;
  std::uint32_t preemptions = 0;
  std::optional<RequestOutcome> outcome;  // none: the run ended before it
};

// KV slots over time, in slots times nanoseconds.
struct MemoryRecord {
  double used = 0;    // in blocks that some table names
  double wasted = 0;  // used slots that no plan sent has written
  std::uint64_t peak_used = 0;
  std::uint64_t pool = 0;  // slots of the pool
};

// Moments at which requests run and wait, in requests times nanoseconds.
struct LoadRecord {
  double running = 0;
  double waiting = 0;
  std::uint32_t peak_running = 0;
  std::uint32_t peak_waiting = 0;
};

struct RunRecord {
  std::vector<RequestRecord> requests;  // in the order of the workload
  std::vector<std::uint32_t> gaps_us;   // between tokens of a request's first sequence
  // [tenants] prompt and output tokens served while a request waited.
  std::vector<std::uint64_t> contended_tokens;
  GroupTotals group;
  scheduler::CoreCounters core;
  MemoryRecord memory;
  LoadRecord load;
  std::int64_t end_ns = 0;  // the last event
  Timeline tokens, waiting, running, used_blocks;

  // A token of request `index` arrives.
  void AddToken(std::uint32_t index, std::int64_t now_ns);
};

}  // namespace flotilla::simulator
