#include "scheduler/server/metrics.h"

#include <cstddef>
#include <utility>
#include <vector>

namespace flotilla::scheduler {
namespace {

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
constexpr char kRefused[] = "flotilla_scheduler_refused_requests_total";
constexpr char kRefusedHelp[] =
    "Requests that ended because the worker group refused plans with them, by outcome.";
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
     "Tokens that running and waiting requests still cost: prompt to prefill, output expected.",
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
    {kCounter, "flotilla_scheduler_plans_refused_total",
     "Plans that the worker group refused, or answered with a result that does not fit.", nullptr,
     nullptr, [](Snapshot s) -> double { return s.core.counters.plans_refused; }},
    {kCounter, kRefused, kRefusedHelp, "outcome", "failed",
     [](Snapshot s) -> double { return s.core.counters.refused_failures; }},
    {kCounter, kRefused, kRefusedHelp, "outcome", "given_back",
     [](Snapshot s) -> double { return s.core.counters.refused_given_back; }},
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
    {kCounter, "flotilla_scheduler_late_rows_total",
     "Rows that gave no token because the mask of their constraint was late.", nullptr, nullptr,
     [](Snapshot s) -> double { return s.core.counters.late_rows; }},
    {kCounter, "flotilla_scheduler_plans_total", "Step plans made.", nullptr, nullptr,
     [](Snapshot s) -> double { return s.core.counters.plans; }},
    {kCounter, "flotilla_scheduler_plan_seconds_total", "Time spent making step plans.", nullptr,
     nullptr, [](Snapshot s) { return Seconds(s.plan_time.sum_ns); }},
    {kCounter, "flotilla_worker_groups_lost_total", "Worker groups that were lost.", nullptr,
     nullptr, [](Snapshot s) -> double { return s.groups_lost; }},
    {kCounter, "flotilla_worker_groups_stopped_total",
     "Worker groups that were lost because their worker said that it stops.", nullptr, nullptr,
     [](Snapshot s) -> double { return s.groups_stopped; }},
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

void Watch(Metrics& metrics, const SchedulerProbe* scheduler, const Clock* clock) {
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
             metric.type == kGauge ? &metrics.AddGauge(metric.name, metric.help, labels) : nullptr,
         .counter = metric.type == kCounter ? &metrics.AddCounter(metric.name, metric.help, labels)
                                            : nullptr});
  }
  Gauge& step_age = metrics.AddGauge(
      "flotilla_scheduler_step_age_seconds",
      "How long the next result has been waited for; 0 while every plan is answered.");
  WatchPreemptions(metrics, scheduler);
  metrics.OnRender([scheduler, clock, &step_age, series = std::move(series)] {
    const SchedulerSnapshot snapshot = scheduler->Read();
    const std::int64_t now_ns = clock->NowNs();
    step_age.Set(Seconds(now_ns - snapshot.unanswered_since_ns.value_or(now_ns)));
    for (const Series& one : series) {
      if (one.gauge != nullptr) one.gauge->Set(one.read(snapshot));
      if (one.counter != nullptr) RaiseTo(*one.counter, one.read(snapshot));
    }
  });
}

}  // namespace

SchedulerMetrics::SchedulerMetrics(Metrics& metrics, const SchedulerProbe* scheduler,
                                   const Clock* clock)
    : step_prefill_(StepTime(metrics, "prefill")),
      step_decode_(StepTime(metrics, "decode")),
      step_mixed_(StepTime(metrics, "mixed")),
      batch_size_(metrics.AddHistogram("flotilla_scheduler_batch_size", "Sequences of one step.",
                                       kBatchSizeBuckets)),
      step_prefill_tokens_(StepTokens(metrics, "prefill")),
      step_decode_tokens_(StepTokens(metrics, "decode")),
      kv_waste_(metrics.AddGauge("flotilla_kv_waste_ratio",
                                 "Slots without a token in the blocks that the sequences of the "
                                 "last step fill.")) {
  Watch(metrics, scheduler, clock);
}

void SchedulerMetrics::OnStep(const StepResult& result, std::uint32_t block_tokens) {
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
    slots += (sequence.length + block_tokens - 1) / block_tokens * block_tokens;
  }
  batch_size_.Observe(static_cast<double>(sequences));
  kv_waste_.Set(slots == 0 ? 0 : 1 - static_cast<double>(tokens) / static_cast<double>(slots));
}

}  // namespace flotilla::scheduler
