#include "cli/role_metrics.h"

#include <array>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace flotilla {
namespace {

double Seconds(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

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

// One replica as a router sees it.
struct ReplicaSeries {
  Gauge* up = nullptr;
  Gauge* outstanding = nullptr;
  Counter* requests = nullptr;
  std::uint64_t seen = 0;  // its requests that were counted; 0 again after a restart
};
ReplicaSeries AddReplica(Metrics& metrics, const std::string& address) {
  const Metrics::Labels labels = {{"replica", address}};
  return {
      .up = &metrics.AddGauge("flotilla_router_replica_up",
                              "1: the scheduler and its worker group are there.", labels),
      .outstanding = &metrics.AddGauge(
          "flotilla_router_replica_outstanding_tokens",
          "Outstanding tokens of the replica, as this router knows them.", labels),
      .requests = &metrics.AddCounter("flotilla_router_replica_requests_total",
                                      "Requests sent to the replica, replays included.", labels)};
}

Histogram& StepTime(Metrics& metrics, const char* phase) {
  return metrics.AddHistogram("flotilla_scheduler_step_duration_seconds",
                              "Forward and sampling of one step.", kStepBuckets,
                              {{"phase", phase}});
}

Histogram& StepTokens(Metrics& metrics, const char* kind) {
  return metrics.AddHistogram("flotilla_scheduler_step_tokens", "Tokens of one step.",
                              kStepTokenBuckets, {{"kind", kind}});
}

// Metrics whose values are read from the scheduler's probe at each scrape. Rows
// with the same name are adjacent and share their help.
enum Type { kGauge, kCounter };
struct SchedulerMetric {
  Type type;
  const char* name;
  const char* help;
  const char* label;  // null: none
  const char* value;
  double (*read)(const SchedulerSnapshot&);
};
using Snapshot = const SchedulerSnapshot&;

constexpr char kWaiting[] = "flotilla_scheduler_requests_waiting";
constexpr char kRunning[] = "flotilla_scheduler_requests_running";
constexpr char kWaitingTokens[] = "flotilla_scheduler_waiting_tokens";
constexpr char kBlocks[] = "flotilla_kv_blocks";
constexpr char kBlocksHelp[] = "Blocks of the KV pool, by state.";
constexpr char kTierCopies[] = "flotilla_kv_tier_copies_total";
constexpr char kTierCopiesHelp[] = "Blocks copied to tiers and back.";
constexpr char kFinished[] = "flotilla_scheduler_requests_finished_total";
constexpr char kFinishedHelp[] = "Requests that ended, by reason.";
constexpr char kTokens[] = "flotilla_scheduler_tokens_total";
constexpr char kQuarantined[] = "flotilla_scheduler_quarantined_requests_total";
constexpr char kQuarantinedHelp[] =
    "Requests under way when their worker group died, and what was found: they got past that "
    "point, or killed it again and were failed.";
constexpr char kTokensHelp[] = "Tokens, by kind; prompt tokens count again when recomputed.";
constexpr char kSpeculation[] = "flotilla_scheduler_speculation_tokens_total";
constexpr char kSpeculationHelp[] =
    "Draft tokens that were run, and those of them that were accepted.";

constexpr SchedulerMetric kSchedulerMetrics[] = {
    {kGauge, kWaiting, "Requests without KV blocks.", nullptr, nullptr,
     [](Snapshot s) -> double { return s.core.load.waiting_requests; }},
    {kGauge, kRunning, "Requests with KV blocks.", nullptr, nullptr,
     [](Snapshot s) -> double { return s.core.load.running_requests; }},
    {kGauge, "flotilla_scheduler_outstanding_tokens",
     "Tokens that running and waiting requests may still cost: prompt to prefill, output allowed.",
     nullptr, nullptr, [](Snapshot s) -> double { return s.core.load.outstanding_tokens; }},
    {kGauge, "flotilla_scheduler_group_ready", "1 while the worker group takes plans.", nullptr,
     nullptr, [](Snapshot s) -> double { return s.core.load.ready ? 1 : 0; }},
    {kGauge, "flotilla_scheduler_draining", "1 while new requests are refused before a stop.",
     nullptr, nullptr, [](Snapshot s) -> double { return s.core.load.draining ? 1 : 0; }},
    {kGauge, "flotilla_scheduler_plans_in_flight", "Step plans without a result.", nullptr, nullptr,
     [](Snapshot s) -> double { return s.core.in_flight; }},
    {kGauge, kWaitingTokens, "Tokens that waiting requests have to prefill.", nullptr, nullptr,
     [](Snapshot s) -> double { return s.core.waiting_tokens; }},
    {kGauge, kBlocks, kBlocksHelp, "state", "total",
     [](Snapshot s) -> double { return s.core.load.blocks_total; }},
    {kGauge, kBlocks, kBlocksHelp, "state", "used",
     [](Snapshot s) -> double { return s.core.load.blocks_used; }},
    {kGauge, kBlocks, kBlocksHelp, "state", "free",
     [](Snapshot s) -> double {
       return s.core.load.blocks_total - s.core.load.blocks_used - s.core.blocks_cached;
     }},
    {kGauge, kBlocks, kBlocksHelp, "state", "cached",
     [](Snapshot s) -> double { return s.core.blocks_cached; }},
    {kGauge, "flotilla_kv_utilization_ratio", "Used blocks / all blocks.", nullptr, nullptr,
     [](Snapshot s) -> double {
       const double total = s.core.load.blocks_total;
       return total == 0 ? 0 : s.core.load.blocks_used / total;
     }},
    {kCounter, kFinished, kFinishedHelp, "reason", "stop",
     [](Snapshot s) -> double { return s.core.counters.stopped; }},
    {kCounter, kFinished, kFinishedHelp, "reason", "length",
     [](Snapshot s) -> double { return s.core.counters.length; }},
    {kCounter, kFinished, kFinishedHelp, "reason", "cancelled",
     [](Snapshot s) -> double { return s.core.counters.cancelled; }},
    {kCounter, kFinished, kFinishedHelp, "reason", "deadline",
     [](Snapshot s) -> double { return s.core.counters.expired; }},
    {kCounter, kFinished, kFinishedHelp, "reason", "error",
     [](Snapshot s) -> double { return s.core.counters.failed; }},
    {kCounter, kTierCopies, kTierCopiesHelp, "direction", "out",
     [](Snapshot s) -> double { return s.core.counters.blocks_out; }},
    {kCounter, kTierCopies, kTierCopiesHelp, "direction", "in",
     [](Snapshot s) -> double { return s.core.counters.blocks_in; }},
    {kGauge, "flotilla_kv_tier_blocks", "Blocks kept in the host and disk tiers.", nullptr, nullptr,
     [](Snapshot s) -> double { return s.core.tier_blocks; }},
    {kCounter, "flotilla_scheduler_late_total",
     "Requests that ended before they started, as they would have missed their deadline.", nullptr,
     nullptr, [](Snapshot s) -> double { return s.core.counters.dropped_late; }},
    {kCounter, "flotilla_scheduler_recomputed_requests_total",
     "Running requests that lost their blocks with a worker group and are computed again.", nullptr,
     nullptr, [](Snapshot s) -> double { return s.core.counters.replays; }},
    {kCounter, kQuarantined, kQuarantinedHelp, "outcome", "quarantined",
     [](Snapshot s) -> double { return s.core.counters.quarantines; }},
    {kCounter, kQuarantined, kQuarantinedHelp, "outcome", "released",
     [](Snapshot s) -> double { return s.core.counters.quarantine_releases; }},
    {kCounter, kQuarantined, kQuarantinedHelp, "outcome", "failed",
     [](Snapshot s) -> double { return s.core.counters.quarantine_failures; }},
    {kCounter, "flotilla_scheduler_bypasses_total",
     "Requests that started before an earlier one that waited for memory.", nullptr, nullptr,
     [](Snapshot s) -> double { return s.core.counters.bypasses; }},
    {kCounter, "flotilla_kv_forks_total", "Sequences that began with another sequence's blocks.",
     nullptr, nullptr, [](Snapshot s) -> double { return s.core.counters.forks; }},
    {kCounter, "flotilla_kv_block_copies_total",
     "Blocks copied for a sequence that writes to them.", nullptr, nullptr,
     [](Snapshot s) -> double { return s.core.counters.block_copies; }},
    {kCounter, kTokens, kTokensHelp, "kind", "prompt",
     [](Snapshot s) -> double { return s.core.counters.prefill_tokens; }},
    {kCounter, kTokens, kTokensHelp, "kind", "prompt_cached",
     [](Snapshot s) -> double { return s.core.counters.cached_tokens; }},
    {kCounter, "flotilla_kv_prefix_lookup_tokens_total", "Tokens looked up in the prefix cache.",
     nullptr, nullptr, [](Snapshot s) -> double { return s.core.counters.lookup_tokens; }},
    {kCounter, "flotilla_kv_prefix_hit_tokens_total", "Tokens found in the prefix cache.", nullptr,
     nullptr, [](Snapshot s) -> double { return s.core.counters.cached_tokens; }},
    {kCounter, "flotilla_kv_prefix_evictions_total", "Cached blocks that gave way to requests.",
     nullptr, nullptr, [](Snapshot s) -> double { return s.core.counters.evictions; }},
    {kCounter, kTokens, kTokensHelp, "kind", "generated",
     [](Snapshot s) -> double { return s.core.counters.output_tokens; }},
    {kCounter, kSpeculation, kSpeculationHelp, "kind", "drafted",
     [](Snapshot s) -> double { return s.core.counters.drafted_tokens; }},
    {kCounter, kSpeculation, kSpeculationHelp, "kind", "accepted",
     [](Snapshot s) -> double { return s.core.counters.accepted_tokens; }},
    {kCounter, "flotilla_scheduler_plans_total", "Step plans made.", nullptr, nullptr,
     [](Snapshot s) -> double { return s.core.counters.plans; }},
    {kCounter, "flotilla_scheduler_plan_seconds_total", "Time spent making step plans.", nullptr,
     nullptr, [](Snapshot s) { return Seconds(s.plan_time.sum_ns); }},
    {kCounter, "flotilla_worker_groups_lost_total", "Worker groups that were lost.", nullptr,
     nullptr, [](Snapshot s) -> double { return s.groups_lost; }},
};

// Shows preemptions: which requests gave blocks back, by mode and reason, and the cost.
void WatchPreemptions(Metrics& metrics, const SchedulerProbe* scheduler) {
  struct Series {
    Counter *prefills, *decodes, *blocks, *seconds;
  };
  std::vector<Series> series;
  for (std::size_t i = 0; i < kPreemptionReasons; ++i) {
    const auto reason = static_cast<PreemptionReason>(i);
    const Metrics::Labels labels = {{"mode", ModeName(reason)}, {"reason", ReasonName(reason)}};
    const auto victims = [&](const char* victim) {
      Metrics::Labels all = labels;
      all["victim"] = victim;
      return &metrics.AddCounter("flotilla_scheduler_preemptions_total",
                                 "Requests that gave their blocks back to others.", all);
    };
    series.push_back(
        {.prefills = victims("prefill"),
         .decodes = victims("decode"),
         .blocks = &metrics.AddCounter("flotilla_scheduler_preempted_blocks_total",
                                       "Blocks that preempted requests gave back.", labels),
         .seconds = &metrics.AddCounter(
             "flotilla_scheduler_preemption_cost_seconds_total",
             "Predicted time to copy or to compute again what preempted requests had.", labels)});
  }
  metrics.OnRender([scheduler, series = std::move(series)] {
    const PreemptionCounters totals = scheduler->Read().core.counters.preempted;
    for (std::size_t i = 0; i < series.size(); ++i) {
      const Series& one = series[i];
      const PreemptionTotals& total = totals[i];
      RaiseTo(*one.prefills, static_cast<double>(total.count - total.decoding));
      RaiseTo(*one.decodes, static_cast<double>(total.decoding));
      RaiseTo(*one.blocks, static_cast<double>(total.blocks));
      RaiseTo(*one.seconds, Seconds(total.cost_ns));
    }
  });
}

}  // namespace

void AddBuildInfo(Metrics& metrics, const std::string& version, const Metrics::Labels& labels) {
  metrics
      .AddGauge("flotilla_build_info", "1.",
                With(With(labels, "version", version), "backend", "cpu"))
      .Set(1);
}

void AddKvConfigInfo(Metrics& metrics, const std::string& kv_type, std::uint32_t kv_blocks,
                     std::uint32_t block_tokens) {
  metrics
      .AddGauge("flotilla_kv_cache_config_info", "1.",
                {{"block_size", std::to_string(block_tokens)},
                 {"num_blocks", std::to_string(kv_blocks)},
                 {"dtype", kv_type}})
      .Set(1);
}

void WatchWorker(Metrics& metrics, const WorkerProbe* worker) {
  Counter& steps = metrics.AddCounter("flotilla_worker_steps_total", "Plans executed.");
  Counter& prefill = metrics.AddCounter("flotilla_worker_rows_total", "Tokens computed, by phase.",
                                        {{"phase", "prefill"}});
  Counter& decode = metrics.AddCounter("flotilla_worker_rows_total", "Tokens computed, by phase.",
                                       {{"phase", "decode"}});
  Counter& compute =
      metrics.AddCounter("flotilla_worker_compute_seconds_total", "Forward and sampling.");
  Counter& lost = metrics.AddCounter("flotilla_worker_epochs_lost_total", "Epochs that ended.");
  Gauge& weights = metrics.AddGauge("flotilla_worker_weight_bytes", "Memory of the weights.");
  Gauge& buffers = metrics.AddGauge("flotilla_worker_buffer_bytes",
                                    "Memory of activations; the KV pool is not in it.");
  metrics.OnRender([=, &steps, &prefill, &decode, &compute, &lost, &weights, &buffers] {
    const auto decoded = static_cast<double>(worker->decode_rows);
    RaiseTo(steps, static_cast<double>(worker->steps));
    RaiseTo(prefill, static_cast<double>(worker->rows) - decoded);
    RaiseTo(decode, decoded);
    RaiseTo(compute, Seconds(worker->compute_ns));
    RaiseTo(lost, static_cast<double>(worker->epochs_lost));
    weights.Set(static_cast<double>(worker->weight_bytes));
    buffers.Set(static_cast<double>(worker->buffer_bytes));
  });
}

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

RouterMetrics::RouterMetrics(Metrics& metrics, const Metrics::Labels& labels)
    : requests_(metrics.AddCounter("flotilla_router_requests_total", "Valid requests.", labels)),
      in_flight_(metrics.AddGauge("flotilla_router_requests_in_flight",
                                  "Valid requests that are not over.", labels)),
      refused_queue_full_(Refused(metrics, labels, "queue_full")),
      refused_draining_(Refused(metrics, labels, "draining")),
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

void WatchCertificate(Metrics& metrics, const rpc::Credentials* credentials) {
  Gauge& expiry = metrics.AddGauge(
      "flotilla_tls_certificate_expiry_timestamp_seconds",
      "When the certificate of the fleet's streams ends; 0: they are not encrypted.");
  metrics.OnRender([credentials, &expiry] {
    const std::optional<absl::Time> end = credentials->CertificateExpiry();
    expiry.Set(end.has_value() ? static_cast<double>(absl::ToUnixSeconds(*end)) : 0);
  });
}

void WatchFleet(Metrics& metrics, const Fleet* fleet) {
  constexpr const char* kKinds[] = {"not_begun", "begun"};
  constexpr const char* kResults[kReplayResults] = {"sent", "resumed", "expired", "impossible"};
  std::array<std::array<Counter*, kReplayResults>, 2> replays;
  for (std::size_t kind = 0; kind < replays.size(); ++kind) {
    for (std::size_t result = 0; result < kReplayResults; ++result) {
      replays[kind][result] = &metrics.AddCounter(
          "flotilla_router_replays_total",
          "Requests that replicas gave back: whether tokens had been delivered, and what became of "
          "them.",
          {{"kind", kKinds[kind]}, {"result", kResults[result]}});
    }
  }
  // The series by address. Replicas come and go; a replica that has gone keeps its series, with
  // `up` 0.
  auto all = std::make_shared<std::map<std::string, ReplicaSeries>>();
  metrics.OnRender([&metrics, fleet, replays, all] {
    const FleetCounters counters = fleet->Counters();
    for (std::size_t kind = 0; kind < replays.size(); ++kind) {
      for (std::size_t result = 0; result < kReplayResults; ++result) {
        RaiseTo(*replays[kind][result], static_cast<double>(counters.replays[kind][result]));
      }
    }
    for (auto& [address, series] : *all) {
      series.up->Set(0);
      series.outstanding->Set(0);
    }
    for (const FleetReplica& replica : fleet->Replicas()) {
      const auto [at, fresh] = all->try_emplace(replica.address);
      ReplicaSeries& series = at->second;
      if (fresh) series = AddReplica(metrics, replica.address);
      series.up->Set(replica.view.up ? 1 : 0);
      series.outstanding->Set(static_cast<double>(replica.view.outstanding_tokens));
      if (replica.view.requests < series.seen) series.seen = 0;
      series.requests->Increment(static_cast<double>(replica.view.requests - series.seen));
      series.seen = replica.view.requests;
    }
  });
}

SchedulerMetrics::SchedulerMetrics(Metrics& metrics, std::uint32_t block_tokens)
    : metrics_(metrics),
      block_tokens_(block_tokens),
      step_prefill_(StepTime(metrics, "prefill")),
      step_decode_(StepTime(metrics, "decode")),
      step_mixed_(StepTime(metrics, "mixed")),
      batch_size_(metrics.AddHistogram("flotilla_scheduler_batch_size", "Sequences of one step.",
                                       kBatchSizeBuckets)),
      step_prefill_tokens_(StepTokens(metrics, "prefill")),
      step_decode_tokens_(StepTokens(metrics, "decode")),
      kv_waste_(metrics.AddGauge("flotilla_kv_waste_ratio",
                                 "Slots without a token in the blocks that the sequences of the "
                                 "last step fill.")) {}

void SchedulerMetrics::OnStep(const StepResult& result) {
  const StepTimings& timings = result.timings;
  if (timings.rows == 0) return;
  const std::uint32_t prefill_rows = timings.rows - timings.decode_rows;
  Histogram& duration = prefill_rows == 0          ? step_decode_
                        : timings.decode_rows == 0 ? step_prefill_
                                                   : step_mixed_;
  duration.Observe(Seconds(timings.compute_ns));
  if (prefill_rows > 0) step_prefill_tokens_.Observe(prefill_rows);
  if (timings.decode_rows > 0) step_decode_tokens_.Observe(timings.decode_rows);

  std::uint64_t sequences = 0, tokens = 0, slots = 0;
  for (const SequenceResult& sequence : result.sequences) {
    if (sequence.noop) continue;
    ++sequences;
    tokens += sequence.length;
    slots += (sequence.length + block_tokens_ - 1) / block_tokens_ * block_tokens_;
  }
  batch_size_.Observe(static_cast<double>(sequences));
  kv_waste_.Set(slots == 0 ? 0 : 1 - static_cast<double>(tokens) / static_cast<double>(slots));
}

void SchedulerMetrics::Watch(const SchedulerProbe* scheduler, const Clock* clock) {
  struct Series {
    double (*read)(const SchedulerSnapshot&);
    Gauge* gauge;  // either this or `counter` is set
    Counter* counter;
  };
  std::vector<Series> series;
  for (const SchedulerMetric& metric : kSchedulerMetrics) {
    Metrics::Labels labels;
    if (metric.label != nullptr) labels[metric.label] = metric.value;
    series.push_back(
        {.read = metric.read,
         .gauge =
             metric.type == kGauge ? &metrics_.AddGauge(metric.name, metric.help, labels) : nullptr,
         .counter = metric.type == kCounter ? &metrics_.AddCounter(metric.name, metric.help, labels)
                                            : nullptr});
  }
  Gauge& step_age = metrics_.AddGauge(
      "flotilla_scheduler_step_age_seconds",
      "How long the next result has been waited for; 0 while every plan is answered.");
  WatchPreemptions(metrics_, scheduler);
  metrics_.OnRender([scheduler, clock, &step_age, series = std::move(series)] {
    const SchedulerSnapshot snapshot = scheduler->Read();
    const std::int64_t now_ns = clock->NowNs();
    step_age.Set(Seconds(now_ns - snapshot.unanswered_since_ns.value_or(now_ns)));
    for (const Series& one : series) {
      if (one.gauge != nullptr) one.gauge->Set(one.read(snapshot));
      if (one.counter != nullptr) RaiseTo(*one.counter, one.read(snapshot));
    }
  });
}

void RouterMetrics::OnStarted() {
  requests_.Increment();
  in_flight_.Increment();
}

void RouterMetrics::OnEnded() { in_flight_.Decrement(); }

void RouterMetrics::OnRefused(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
      return refused_queue_full_.Increment();
    case absl::StatusCode::kUnavailable:
      return refused_draining_.Increment();
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

}  // namespace flotilla
