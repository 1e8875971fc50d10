// RouterMetrics: the metrics of the requests that a router serves. docs/api.md lists them.
//
// Main owns one for each model, and one for requests that name no model. Any thread may call it;
// it does not block.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/obs/metrics.h"
#include "common/types/engine.h"
#include "common/types/event.h"

namespace flotilla::router {

class RouterMetrics {
 public:
  // Each series has `labels`. `metrics` outlives this object.
  explicit RouterMetrics(Metrics& metrics, const Metrics::Labels& labels = {});

  // A valid request begins, and is over. Each request makes one call of each.
  void OnStarted();
  void OnEnded();
  // A request was refused, by the validator, a queue or the engine, which drains or does not.
  void OnRefused(const absl::Status& status, bool draining = false);
  // There were too many connections for another one.
  void OnConnectionRefused();
  // The time from Start to the first token of any choice.
  void OnFirstToken(std::int64_t elapsed_ns);
  // The time between two deltas of one choice, divided by the tokens of the later one.
  void OnInterToken(std::int64_t elapsed_ns);
  // A request ends early: kCancelled by its client, or kDeadline after it was accepted.
  void OnCancelled(FinishReason why);
  // A request ended: how long it took, and what it used.
  void OnFinished(std::int64_t elapsed_ns, std::uint32_t prompt_tokens,
                  std::uint32_t output_tokens);
  // An engine gave a request back and it is submitted again.
  void OnReplayed();

 private:
  Counter& requests_;
  Gauge& in_flight_;
  Counter& refused_queue_full_;
  Counter& refused_limit_;
  Counter& refused_draining_;
  Counter& refused_unavailable_;
  Counter& refused_connections_;
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

// Shows whether a router serves new requests. Reads `engine`, which outlives the last Render,
// at each scrape from now on.
void WatchEngine(Metrics& metrics, const Engine* engine, const Metrics::Labels& labels = {});

}  // namespace flotilla::router
