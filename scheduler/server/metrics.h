// SchedulerMetrics: the metrics of an engine loop, which owns it. docs/api.md lists them.
#pragma once

#include <cstdint>

#include "common/obs/metrics.h"
#include "common/rt/clock.h"
#include "common/types/plan.h"
#include "scheduler/server/probe.h"

namespace flotilla::scheduler {

class SchedulerMetrics {
 public:
  // Shows `scheduler`, whose loop uses `clock`, at each scrape from now on. All outlive the last
  // Render.
  SchedulerMetrics(Metrics& metrics, const SchedulerProbe* scheduler, const Clock* clock);

  // Counts a step of a worker group whose blocks hold `block_tokens` tokens. One thread.
  void OnStep(const StepResult& result, std::uint32_t block_tokens);

 private:
  Histogram& step_prefill_;
  Histogram& step_decode_;
  Histogram& step_mixed_;
  Histogram& batch_size_;
  Histogram& step_prefill_tokens_;
  Histogram& step_decode_tokens_;
  Gauge& kv_waste_;
};

}  // namespace flotilla::scheduler
