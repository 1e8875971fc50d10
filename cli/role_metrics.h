// The metrics of each role, and how each gets its value: the router's from its probe,
// the scheduler's from step results and from a snapshot of its probe at each scrape,
// the worker's from its probe at each scrape.
//
// Built by main before the roles and destroyed after them, on one registry per
// process. Names and buckets are part of the public interface: docs/api.md lists them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/obs/metrics.h"
#include "common/rt/clock.h"
#include "common/types/engine.h"
#include "common/types/plan.h"
#include "router/probe.h"
#include "router/remote/fleet.h"
#include "rpc/credentials.h"
#include "scheduler/server/probe.h"
#include "worker/exec/probe.h"

namespace flotilla {

// Adds flotilla_build_info and, if there is a KV pool, the configuration of the pool.
void AddBuildInfo(Metrics& metrics, const std::string& version, const Metrics::Labels& labels = {});
void AddKvConfigInfo(Metrics& metrics, const std::string& kv_type, std::uint32_t kv_blocks,
                     std::uint32_t block_tokens);

// Shows at each scrape when the certificate of the fleet's streams expires; 0: there is none.
// `credentials` outlives the last Render.
void WatchCertificate(Metrics& metrics, const rpc::Credentials* credentials);

class RouterMetrics final : public RouterProbe {
 public:
  // Each series has `labels`.
  explicit RouterMetrics(Metrics& metrics, const Metrics::Labels& labels = {});

  // Any thread.
  void OnStarted() override;
  void OnEnded() override;
  void OnRefused(const absl::Status& status) override;
  void OnFirstToken(std::int64_t elapsed_ns) override;
  void OnInterToken(std::int64_t elapsed_ns) override;
  void OnCancelled(FinishReason why) override;
  void OnFinished(std::int64_t elapsed_ns, std::uint32_t prompt_tokens,
                  std::uint32_t output_tokens) override;
  void OnReplayed() override;

 private:
  Counter& requests_;
  Gauge& in_flight_;
  Counter& refused_queue_full_;
  Counter& refused_draining_;
  Counter& refused_too_long_;
  Counter& refused_deadline_;
  Counter& refused_invalid_;
  Counter& refused_key_;
  Counter& refused_other_;
  Counter& cancelled_by_client_;
  Counter& cancelled_by_deadline_;
  Counter& replays_;
  Histogram& ttft_;
  Histogram& inter_token_;
  Histogram& request_;
  Histogram& prompt_tokens_;
  Histogram& output_tokens_;
};

// Shows the replicas of a router at each scrape from now on: which are up, their outstanding
// tokens, how many requests the router sent to each, and what became of requests that were given
// back. `fleet` outlives the last Render.
void WatchFleet(Metrics& metrics, const Fleet* fleet);

class SchedulerMetrics final {
 public:
  // `metrics` outlives this object.
  SchedulerMetrics(Metrics& metrics, std::uint32_t block_tokens);

  // Gets every step result. One thread.
  void OnStep(const StepResult& result);

  // Reads `scheduler`, whose loop uses `clock`, at each scrape from now on. Both
  // outlive the last Render. Called once, before the first Render.
  void Watch(const SchedulerProbe* scheduler, const Clock* clock);

 private:
  Metrics& metrics_;
  const std::uint32_t block_tokens_;
  Histogram& step_prefill_;
  Histogram& step_decode_;
  Histogram& step_mixed_;
  Histogram& batch_size_;
  Histogram& step_prefill_tokens_;
  Histogram& step_decode_tokens_;
  Gauge& kv_waste_;
};

// Shows whether a router serves new requests. Reads `engine`, which outlives the last Render,
// at each scrape from now on.
void WatchEngine(Metrics& metrics, const Engine* engine, const Metrics::Labels& labels = {});

// Reads `worker`, which outlives the last Render, at each scrape from now on.
void WatchWorker(Metrics& metrics, const WorkerProbe* worker);

}  // namespace flotilla
