// ServeMetrics: every metric of a process that plays all roles, and how each
// gets its value: the router's from its probe, the worker's from step results,
// the scheduler's from a snapshot of its probe at each scrape.
//
// Built by main before the roles and destroyed after them. Names and buckets
// are part of the public interface: docs/api.md lists them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/obs/metrics.h"
#include "common/types/plan.h"
#include "router/probe.h"
#include "scheduler/server/probe.h"

namespace flotilla {

class ServeMetrics final : public RouterProbe {
 public:
  struct Config {
    std::string model;    // as clients name it: a label of every series
    std::string version;  // of this program
    std::string kv_type;
    std::uint32_t kv_blocks = 0;
    std::uint32_t block_tokens = 16;
  };
  explicit ServeMetrics(const Config& config);

  // Sees every step result; one thread.
  void OnStep(const StepResult& result);

  // Reads `scheduler` at each scrape from now on. It outlives the last Render;
  // called once, before the first.
  void Watch(const SchedulerProbe* scheduler);

  // The page of /metrics. Any thread.
  std::string Render() { return metrics_.Render(); }

  // RouterProbe, any thread.
  void OnRefused(const absl::Status& status) override;
  void OnFirstToken(std::int64_t elapsed_ns) override;
  void OnInterToken(std::int64_t elapsed_ns) override;
  void OnCancelled(CancelledBy by) override;
  void OnFinished(std::int64_t elapsed_ns, std::uint32_t prompt_tokens,
                  std::uint32_t output_tokens) override;
  void OnReplayed() override;

 private:
  const std::uint32_t block_tokens_;
  Metrics metrics_;

  Counter& refused_queue_full_;
  Counter& refused_draining_;
  Counter& refused_too_long_;
  Counter& refused_deadline_;
  Counter& refused_invalid_;
  Counter& refused_other_;
  Counter& cancelled_by_client_;
  Counter& cancelled_by_deadline_;
  Counter& replays_;
  Histogram& ttft_;
  Histogram& inter_token_;
  Histogram& request_;
  Histogram& prompt_tokens_;
  Histogram& output_tokens_;

  Histogram& step_prefill_;
  Histogram& step_decode_;
  Histogram& step_mixed_;
  Histogram& batch_size_;
  Histogram& step_prefill_tokens_;
  Histogram& step_decode_tokens_;
  Gauge& kv_waste_;
};

}  // namespace flotilla
