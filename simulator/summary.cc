#include "simulator/summary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"

namespace flotilla::simulator {
namespace {

constexpr double kNsPerMs = 1e6;

double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

double ToMs(std::int64_t ns) { return static_cast<double>(ns) / kNsPerMs; }

bool IsGood(const RequestRecord& request, const ServiceLevel& level) {
  if (request.outcome != RequestOutcome::kFinished || request.first_token_ns == 0) return false;
  if (ToMs(request.first_token_ns - request.arrival_ns) > level.ttft_ms) return false;
  if (request.output_tokens < 2) return true;
  const double gap_ms =
      ToMs(request.last_token_ns - request.first_token_ns) / (request.output_tokens - 1);
  return gap_ms <= level.itl_ms;
}

// Counts and times of requests.
void SumRequests(const Workload& workload, const RunRecord& record, const ServiceLevel& level,
                 Summary& s) {
  std::vector<double> ttft, latency, token_latency, ends;
  double output = 0, prompt = 0, good = 0;
  for (std::size_t i = 0; i < record.requests.size(); ++i) {
    const RequestRecord& request = record.requests[i];
    s.finished += request.outcome == RequestOutcome::kFinished;
    s.refused += request.outcome == RequestOutcome::kRefused;
    s.expired += request.outcome == RequestOutcome::kDeadline;
    output += request.output_tokens;
    good += IsGood(request, level);
    if (request.first_token_ns > 0) {
      ttft.push_back(ToMs(request.first_token_ns - request.arrival_ns));
    }
    if (request.outcome != RequestOutcome::kFinished) continue;
    ends.push_back(ToMs(request.last_token_ns) / 1000);
    prompt += workload.requests[i].prompt_tokens;
    latency.push_back(ToMs(request.last_token_ns - request.arrival_ns));
    token_latency.push_back(latency.back() / std::max(request.output_tokens, 1u));
  }
  s.requests = static_cast<double>(record.requests.size());
  const std::int64_t start = record.requests.empty() ? 0 : record.requests[0].arrival_ns;
  s.seconds = ToMs(record.end_ns - start) / 1000;
  s.requests_per_s = Ratio(s.finished, s.seconds);
  if (ends.size() >= 4) {
    std::sort(ends.begin(), ends.end());
    const std::size_t first = ends.size() / 4, last = 3 * ends.size() / 4;
    s.steady_requests_per_s = Ratio(static_cast<double>(last - first), ends[last] - ends[first]);
  }
  s.output_tokens_per_s = Ratio(output, s.seconds);
  s.prompt_tokens_per_s = Ratio(prompt, s.seconds);
  s.goodput_per_s = Ratio(good, s.seconds);
  s.good_share = Ratio(good, s.requests);
  s.ttft_ms = PercentilesOf(ttft);
  s.latency_ms = PercentilesOf(latency);
  s.token_latency_ms = PercentilesOf(token_latency);
  std::vector<double> gaps(record.gaps_us.begin(), record.gaps_us.end());
  for (double& gap : gaps) gap /= 1000;
  s.itl_ms = PercentilesOf(gaps);
}

// Sums up the times to first token by the class that `class_of` gives each request.
template <class ClassOf>
void SumClasses(const Workload& workload, const RunRecord& record, ClassOf class_of,
                std::vector<ClassSummary>& classes) {
  std::vector<std::vector<double>> ttft(classes.size());
  for (std::size_t i = 0; i < record.requests.size(); ++i) {
    const RequestRecord& request = record.requests[i];
    const std::size_t index = class_of(workload.requests[i]);
    ++classes[index].requests;
    if (request.first_token_ns == 0) continue;
    ttft[index].push_back(ToMs(request.first_token_ns - request.arrival_ns));
  }
  for (std::size_t c = 0; c < classes.size(); ++c) classes[c].ttft_ms = PercentilesOf(ttft[c]);
}

void SumByClass(const Workload& workload, const RunRecord& record, Summary& s) {
  s.by_prompt = {
      {.name = absl::StrCat("prompts of at most ", kShortPrompt, " tokens")},
      {.name = absl::StrCat("prompts of ", kShortPrompt + 1, " to ", kMediumPrompt, " tokens")},
      {.name = absl::StrCat("prompts of more than ", kMediumPrompt, " tokens")}};
  const auto by_prompt = [](const SimulatedRequest& request) -> std::size_t {
    return (request.prompt_tokens > kShortPrompt) + (request.prompt_tokens > kMediumPrompt);
  };
  SumClasses(workload, record, by_prompt, s.by_prompt);

  std::set<std::int32_t, std::greater<>> priorities;
  for (const SimulatedRequest& request : workload.requests) priorities.insert(request.priority);
  const std::vector<std::int32_t> sorted(priorities.begin(), priorities.end());
  for (const std::int32_t priority : sorted) {
    s.by_priority.push_back({.name = absl::StrCat("priority ", priority)});
  }
  const auto by_priority = [&sorted](const SimulatedRequest& request) -> std::size_t {
    return std::lower_bound(sorted.begin(), sorted.end(), request.priority, std::greater<>()) -
           sorted.begin();
  };
  SumClasses(workload, record, by_priority, s.by_priority);

  for (const std::string& tenant : workload.tenants) s.by_tenant.push_back({.name = tenant});
  SumClasses(
      workload, record,
      [](const SimulatedRequest& request) -> std::size_t { return request.tenant; }, s.by_tenant);
}

void SumMachine(const RunRecord& record, Summary& s) {
  const double ns = s.seconds * 1e9;
  s.mean_running = Ratio(record.load.running, ns);
  s.peak_running = record.load.peak_running;
  s.mean_waiting = Ratio(record.load.waiting, ns);
  s.peak_waiting = record.load.peak_waiting;
  const double pool = static_cast<double>(record.memory.pool);
  s.mean_memory = Ratio(record.memory.used, ns * pool);
  s.peak_memory = Ratio(static_cast<double>(record.memory.peak_used), pool);
  s.wasted_memory = Ratio(record.memory.wasted, record.memory.used);
  s.preemptions = static_cast<double>(record.core.preemptions);
  s.swapped = static_cast<double>(record.core.swapped);
  s.cached_share = Ratio(static_cast<double>(record.core.cached_tokens),
                         static_cast<double>(record.core.lookup_tokens));
  s.steps = static_cast<double>(record.group.steps);
  s.step_ms = Ratio(ToMs(record.group.busy_ns), s.steps);
  s.rows_per_step = Ratio(static_cast<double>(record.group.rows.rows()), s.steps);
  s.busy_share = Ratio(static_cast<double>(record.group.busy_ns), ns);
  s.memory_bound_share =
      Ratio(static_cast<double>(record.group.memory_bound),
            static_cast<double>(record.group.memory_bound + record.group.compute_bound));
}

void SumTenants(const Workload& workload, const RunRecord& record, Summary& s) {
  std::vector<std::vector<double>> ttft(workload.tenants.size());
  s.tenants.resize(workload.tenants.size());
  for (std::size_t t = 0; t < s.tenants.size(); ++t) {
    s.tenants[t].name = workload.tenants[t];
    s.tenants[t].contended_tokens = record.contended_tokens[t];
  }
  for (std::size_t i = 0; i < record.requests.size(); ++i) {
    const RequestRecord& request = record.requests[i];
    TenantSummary& tenant = s.tenants[workload.requests[i].tenant];
    ++tenant.requests;
    tenant.finished += request.outcome == RequestOutcome::kFinished;
    if (request.first_token_ns == 0) continue;
    ttft[workload.requests[i].tenant].push_back(ToMs(request.first_token_ns - request.arrival_ns));
  }
  for (std::size_t t = 0; t < s.tenants.size(); ++t) {
    const Percentiles p = PercentilesOf(ttft[t]);
    s.tenants[t].ttft_p50_ms = p.p50;
    s.tenants[t].ttft_p99_ms = p.p99;
  }
  s.fairness = JainIndex(record.contended_tokens);
}

}  // namespace

Percentiles PercentilesOf(std::vector<double>& values) {
  Percentiles p;
  if (values.empty()) return p;
  std::sort(values.begin(), values.end());
  const auto at = [&values](double percent) {
    const double rank = std::ceil(percent / 100 * static_cast<double>(values.size()));
    return values[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
  };
  double sum = 0;
  for (const double value : values) sum += value;
  p.mean = sum / static_cast<double>(values.size());
  p.p50 = at(50);
  p.p90 = at(90);
  p.p99 = at(99);
  p.worst = values.back();
  return p;
}

double JainIndex(absl::Span<const std::uint64_t> values) {
  double sum = 0, squares = 0;
  for (const std::uint64_t value : values) {
    const double x = static_cast<double>(value);
    sum += x;
    squares += x * x;
  }
  return squares > 0 ? sum * sum / (static_cast<double>(values.size()) * squares) : 1;
}

Summary Summarize(const Workload& workload, const RunRecord& record, const ServiceLevel& level) {
  Summary s;
  SumRequests(workload, record, level, s);
  SumMachine(record, s);
  SumTenants(workload, record, s);
  SumByClass(workload, record, s);
  return s;
}

}  // namespace flotilla::simulator
