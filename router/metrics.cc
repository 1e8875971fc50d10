#include "router/metrics.h"

#include <string>

#include "router/errors.h"

namespace flotilla::router {
namespace {

Metrics::Labels With(Metrics::Labels labels, const char* name, const std::string& value) {
  labels[name] = value;
  return labels;
}

Counter& Refused(Metrics& metrics, const Metrics::Labels& labels, const char* reason) {
  return metrics.AddCounter("flotilla_router_rejected_total", "Requests refused, by reason.",
                            With(labels, "reason", reason));
}

Counter& Cancelled(Metrics& metrics, const Metrics::Labels& labels, const char* by) {
  return metrics.AddCounter("flotilla_router_cancelled_total",
                            "Requests that ended before they were complete, by cause.",
                            With(labels, "by", by));
}

}  // namespace

RouterMetrics::RouterMetrics(Metrics& metrics, const Metrics::Labels& labels)
    : requests_(metrics.AddCounter("flotilla_router_requests_total", "Valid requests.", labels)),
      in_flight_(metrics.AddGauge("flotilla_router_requests_in_flight",
                                  "Valid requests that are not over.", labels)),
      refused_queue_full_(Refused(metrics, labels, "queue_full")),
      refused_limit_(Refused(metrics, labels, "rate_limit")),
      refused_draining_(Refused(metrics, labels, "draining")),
      refused_unavailable_(Refused(metrics, labels, "unavailable")),
      refused_connections_(Refused(metrics, labels, "connections")),
      refused_too_long_(Refused(metrics, labels, "too_long")),
      refused_deadline_(Refused(metrics, labels, "deadline")),
      refused_invalid_(Refused(metrics, labels, "invalid")),
      refused_key_(Refused(metrics, labels, "unauthenticated")),
      refused_other_(Refused(metrics, labels, "other")),
      cancelled_by_client_(Cancelled(metrics, labels, "client")),
      cancelled_by_deadline_(Cancelled(metrics, labels, "deadline")),
      replays_(metrics.AddCounter("flotilla_router_retries_total",
                                  "Requests submitted again after an engine gave them back.",
                                  labels)),
      ttft_(metrics.AddHistogram("flotilla_router_time_to_first_token_seconds",
                                 "From arrival to the first token.", kTtftBuckets, labels)),
      inter_token_(metrics.AddHistogram("flotilla_router_inter_token_latency_seconds",
                                        "Between tokens of one answer.", kInterTokenBuckets,
                                        labels)),
      request_(metrics.AddHistogram("flotilla_router_request_duration_seconds",
                                    "From arrival to the end.", kRequestBuckets, labels)),
      prompt_tokens_(metrics.AddHistogram("flotilla_router_prompt_tokens",
                                          "Prompt tokens of one request.", kRequestTokenBuckets,
                                          labels)),
      output_tokens_(metrics.AddHistogram("flotilla_router_output_tokens",
                                          "Output tokens of one request.", kRequestTokenBuckets,
                                          labels)) {}

void RouterMetrics::OnStarted() {
  requests_.Increment();
  in_flight_.Increment();
}

void RouterMetrics::OnEnded() { in_flight_.Decrement(); }

void RouterMetrics::OnConnectionRefused() { refused_connections_.Increment(); }

void RouterMetrics::OnRefused(const absl::Status& status, bool draining) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return (ErrorCode(status) == kRateLimitExceeded ? refused_limit_ : refused_queue_full_)
          .Increment();
    case absl::StatusCode::kUnavailable:
      return (draining ? refused_draining_ : refused_unavailable_).Increment();
    case absl::StatusCode::kOutOfRange:
      return refused_too_long_.Increment();
    case absl::StatusCode::kDeadlineExceeded:
      return refused_deadline_.Increment();
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnimplemented:
      return refused_invalid_.Increment();
    case absl::StatusCode::kUnauthenticated:
      return refused_key_.Increment();
    default:
      return refused_other_.Increment();
  }
}

void RouterMetrics::OnFirstToken(std::int64_t elapsed_ns) { ttft_.Observe(Seconds(elapsed_ns)); }

void RouterMetrics::OnInterToken(std::int64_t elapsed_ns) {
  inter_token_.Observe(Seconds(elapsed_ns));
}

void RouterMetrics::OnCancelled(FinishReason why) {
  (why == FinishReason::kCancelled ? cancelled_by_client_ : cancelled_by_deadline_).Increment();
}

void RouterMetrics::OnFinished(std::int64_t elapsed_ns, std::uint32_t prompt_tokens,
                               std::uint32_t output_tokens) {
  request_.Observe(Seconds(elapsed_ns));
  prompt_tokens_.Observe(prompt_tokens);
  output_tokens_.Observe(output_tokens);
}

void RouterMetrics::OnReplayed() { replays_.Increment(); }

void WatchEngine(Metrics& metrics, const Engine* engine, const Metrics::Labels& labels) {
  Gauge& ready =
      metrics.AddGauge("flotilla_router_ready", "1 while new requests are served.", labels);
  Gauge& draining = metrics.AddGauge("flotilla_router_draining",
                                     "1 while new requests are refused before a stop.", labels);
  metrics.OnRender([engine, &ready, &draining] {
    const EngineLoad load = engine->Load();
    ready.Set(load.ready && !load.draining ? 1 : 0);
    draining.Set(load.draining ? 1 : 0);
  });
}

}  // namespace flotilla::router
