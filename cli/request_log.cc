#include "cli/request_log.h"

#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/obs/trace.h"

namespace flotilla::cli {
namespace {

std::string Milliseconds(std::int64_t ns) {
  return absl::StrFormat("%.1f", static_cast<double>(ns) * 1e-6);
}

std::string FirstToken(const std::optional<std::int64_t>& ns) {
  return ns.has_value() ? Milliseconds(*ns) : "none";
}

const char* CauseName(Lost::Cause cause) {
  switch (cause) {
    case Lost::Cause::kDied:
      return "died";
    case Lost::Cause::kStuck:
      return "stuck";
    case Lost::Cause::kDigest:
      return "digest";
    case Lost::Cause::kInvalidPlan:
      return "invalid_plan";
    case Lost::Cause::kStopped:
      return "stopping";
  }
  return "";
}

const char* Name(RequestOutcome outcome) {
  switch (outcome) {
    case RequestOutcome::kFinished:
      return "finished";
    case RequestOutcome::kCancelled:
      return "cancelled";
    case RequestOutcome::kDeadline:
      return "deadline";
    case RequestOutcome::kRefused:
      return "refused";
    case RequestOutcome::kFailed:
      return "failed";
  }
  return "";
}

}  // namespace

void LogOver(Logger& log, const router::RequestRecord& r) {
  const bool refused = r.outcome == RequestOutcome::kRefused;
  const LogLevel level = refused                                ? LogLevel::kDebug
                         : r.outcome == RequestOutcome::kFailed ? LogLevel::kWarning
                                                                : LogLevel::kInfo;
  if (!log.Takes(level)) return;
  log.Log(level, "request ended",
          {{"request", RequestName(r.id)},
           {"id", r.public_id},
           {"client_request_id", r.label},
           {"trace_id", TraceIdText(r.trace)},
           {"span_id", SpanIdText(r.trace.span)},
           {"parent_span_id", SpanIdText(r.parent_span)},
           {"model", r.model},
           {"tenant", r.tenant},
           {"outcome", Name(r.outcome)},
           {"error", std::string(r.status.message())},
           {"prompt_tokens", r.usage.prompt_tokens},
           {"cached_tokens", r.usage.cached_tokens},
           {"output_tokens", r.usage.output_tokens},
           {"attempts", r.attempts},
           {"first_token_ms", FirstToken(r.first_token_ns)},
           {"ms", Milliseconds(r.elapsed_ns)}});
}

void LogServed(Logger& log, const scheduler::ServedRecord& r) {
  log.Debug("attempt ended", {{"request", RequestName(r.id)},
                              {"attempt", r.attempt.value()},
                              {"client_request_id", r.label},
                              {"trace_id", TraceIdText(r.trace)},
                              {"span_id", SpanIdText(r.trace.span)},
                              {"status", r.status},
                              {"prompt_tokens", r.usage.prompt_tokens},
                              {"cached_tokens", r.usage.cached_tokens},
                              {"output_tokens", r.usage.output_tokens},
                              {"preemptions", r.usage.preemptions},
                              {"first_token_ms", FirstToken(r.first_token_ns)},
                              {"ms", Milliseconds(r.elapsed_ns)}});
}

void LogLost(Logger& log, const Lost& lost) {
  log.Info("the worker group is gone", {{"cause", CauseName(lost.cause)},
                                        {"detail", lost.detail},
                                        {"steps_started", lost.started.size()},
                                        {"blames", lost.blames_requests ? "requests" : "nobody"}});
}

void LogPreemption(Logger& log, const scheduler::Preemption& p) {
  log.Debug("request preempted", {{"request", RequestName(p.victim)},
                                  {"for", RequestName(p.winner)},
                                  {"mode", scheduler::ModeName(p.reason)},
                                  {"reason", scheduler::ReasonName(p.reason)},
                                  {"victim", p.decoding ? "decode" : "prefill"},
                                  {"blocks", p.blocks},
                                  {"swapped_blocks", p.swapped_blocks},
                                  {"swap_us_per_block", p.swap_ns / 1000},
                                  {"compute_us_per_block", p.recompute_ns / 1000},
                                  {"cost_ms", p.cost_ns / 1'000'000}});
}

std::function<void(const StepPlan&)> PlanLog(Logger* log) {
  if (!log->Takes(LogLevel::kDebug)) return nullptr;
  return [log](const StepPlan& plan) {
    for (const PlanOp& op : plan.ops) {
      if (const auto* open = std::get_if<OpenSequence>(&op)) {
        log->Debug("sequence opened", {{"request", RequestName(open->request)},
                                       {"sequence", open->index.value()},
                                       {"handle", open->sequence.value()},
                                       {"epoch", plan.epoch.value()},
                                       {"step", plan.step.value()},
                                       {"tokens", open->tokens.size()},
                                       {"cached_tokens", open->cached_tokens}});
      } else if (const auto* drop = std::get_if<DropSequence>(&op)) {
        log->Debug("sequence dropped", {{"handle", drop->sequence.value()},
                                        {"epoch", plan.epoch.value()},
                                        {"step", plan.step.value()}});
      }
    }
  };
}

}  // namespace flotilla::cli
