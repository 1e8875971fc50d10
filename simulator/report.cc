#include "simulator/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/report/align_columns.h"

namespace flotilla::simulator {
namespace {

using Json = nlohmann::ordered_json;

struct Metric {
  const char* key;    // in JSON and CSV, with its unit
  const char* title;  // in the table
  int digits;         // after the point, in the table
  bool quiet;         // left out of the table if every run has zero
  double (*value)(const Summary&);
  double table_scale = 1;
  const char* brief = nullptr;  // the column's title in a table of many runs; null: no column
};

constexpr double kPercent = 100;

constexpr auto kMetrics = std::to_array<Metric>({
    {"requests", "requests", 0, false, [](const Summary& s) { return s.requests; }},
    {"finished", "  finished", 0, false, [](const Summary& s) { return s.finished; }},
    {"refused", "  refused", 0, true, [](const Summary& s) { return s.refused; }},
    {"expired", "  past their deadline", 0, true, [](const Summary& s) { return s.expired; }},
    {"seconds", "virtual time, s", 1, false, [](const Summary& s) { return s.seconds; }},
    {"requests_per_s", "requests/s", 2, false, [](const Summary& s) { return s.requests_per_s; }, 1,
     "req/s"},
    {"steady_requests_per_s", "  in the middle half", 2, false,
     [](const Summary& s) { return s.steady_requests_per_s; }},
    {"output_tokens_per_s", "output tokens/s", 1, false,
     [](const Summary& s) { return s.output_tokens_per_s; }, 1, "out tok/s"},
    {"prompt_tokens_per_s", "prompt tokens/s", 1, false,
     [](const Summary& s) { return s.prompt_tokens_per_s; }},
    {"goodput_per_s", "goodput, requests/s", 2, false,
     [](const Summary& s) { return s.goodput_per_s; }, 1, "good req/s"},
    {"good_share", "  of requests, %", 1, false, [](const Summary& s) { return s.good_share; },
     kPercent},
    {"ttft_mean_ms", "TTFT mean, ms", 1, false, [](const Summary& s) { return s.ttft_ms.mean; }},
    {"ttft_p50_ms", "  p50", 1, false, [](const Summary& s) { return s.ttft_ms.p50; }, 1,
     "TTFT p50"},
    {"ttft_p90_ms", "  p90", 1, false, [](const Summary& s) { return s.ttft_ms.p90; }},
    {"ttft_p99_ms", "  p99", 1, false, [](const Summary& s) { return s.ttft_ms.p99; }, 1,
     "p99, ms"},
    {"itl_mean_ms", "ITL mean, ms", 2, false, [](const Summary& s) { return s.itl_ms.mean; }},
    {"itl_p50_ms", "  p50", 2, false, [](const Summary& s) { return s.itl_ms.p50; }, 1, "ITL p50"},
    {"itl_p90_ms", "  p90", 2, false, [](const Summary& s) { return s.itl_ms.p90; }},
    {"itl_p99_ms", "  p99", 2, false, [](const Summary& s) { return s.itl_ms.p99; }, 1, "p99, ms"},
    {"itl_worst_ms", "  worst", 2, false, [](const Summary& s) { return s.itl_ms.worst; }},
    {"latency_p50_ms", "latency p50, ms", 0, false,
     [](const Summary& s) { return s.latency_ms.p50; }},
    {"latency_p99_ms", "  p99", 0, false, [](const Summary& s) { return s.latency_ms.p99; }},
    {"token_latency_mean_ms", "latency per token mean, ms", 2, false,
     [](const Summary& s) { return s.token_latency_ms.mean; }, 1, "ms/token"},
    {"mean_running", "running, mean", 1, false, [](const Summary& s) { return s.mean_running; }, 1,
     "running"},
    {"peak_running", "  peak", 0, false, [](const Summary& s) { return s.peak_running; }},
    {"mean_waiting", "waiting, mean", 1, false, [](const Summary& s) { return s.mean_waiting; }, 1,
     "waiting"},
    {"peak_waiting", "  peak", 0, false, [](const Summary& s) { return s.peak_waiting; }},
    {"mean_memory", "KV memory used, mean %", 1, false,
     [](const Summary& s) { return s.mean_memory; }, kPercent, "KV %"},
    {"peak_memory", "  peak %", 1, false, [](const Summary& s) { return s.peak_memory; }, kPercent},
    {"wasted_memory", "  of it wasted, %", 2, false,
     [](const Summary& s) { return s.wasted_memory; }, kPercent},
    {"preemptions", "preemptions", 0, true, [](const Summary& s) { return s.preemptions; }},
    {"preemptions_swapped", "  of them swapped", 0, true,
     [](const Summary& s) { return s.swapped; }},
    {"cached_share", "prompt tokens from cache, %", 1, true,
     [](const Summary& s) { return s.cached_share; }, kPercent},
    {"steps", "steps", 0, false, [](const Summary& s) { return s.steps; }},
    {"step_ms", "  mean, ms", 2, false, [](const Summary& s) { return s.step_ms; }},
    {"rows_per_step", "  rows, mean", 1, false, [](const Summary& s) { return s.rows_per_step; }},
    {"busy_share", "machine busy, %", 1, false, [](const Summary& s) { return s.busy_share; },
     kPercent},
    {"memory_bound_share", "steps bound by memory, %", 1, true,
     [](const Summary& s) { return s.memory_bound_share; }, kPercent},
    {"fairness", "fairness (Jain)", 3, false, [](const Summary& s) { return s.fairness; }},
});

constexpr std::size_t kShownTenants = 10;
// Each run is a column of the table. If there are more runs than this, each is a line.
constexpr std::size_t kMostColumns = 6;

std::string Cell(const Metric& metric, const Summary& run) {
  return absl::StrFormat("%.*f", metric.digits, metric.value(run) * metric.table_scale);
}

// Makes a name from a trace safe to print on a terminal and to write into CSV.
std::string Plain(std::string name) {
  for (char& c : name) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == ',' || c == '"') c = '?';
  }
  return name;
}

// Returns a table with one line per run and one column per metric with a short title.
std::string BriefTable(absl::Span<const Summary> runs) {
  std::vector<std::vector<std::string>> rows = {{""}};
  for (const Metric& metric : kMetrics) {
    if (metric.brief != nullptr) rows[0].emplace_back(metric.brief);
  }
  for (const Summary& run : runs) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(Plain(run.label));
    for (const Metric& metric : kMetrics) {
      if (metric.brief != nullptr) row.push_back(Cell(metric, run));
    }
  }
  return AlignColumns(rows);
}

void AddClasses(const char* key, const std::vector<ClassSummary>& classes, Json& out) {
  Json& list = out[key] = Json::array();
  for (const ClassSummary& one : classes) {
    list.push_back({{"name", one.name},
                    {"requests", one.requests},
                    {"ttft_p50_ms", one.ttft_ms.p50},
                    {"ttft_p99_ms", one.ttft_ms.p99}});
  }
}

void AppendTenants(const Summary& run, std::string& out) {
  if (run.tenants.size() < 2) return;
  std::vector<std::vector<std::string>> rows = {
      {"tenant", "requests", "finished", "tokens while contended", "TTFT p50, ms", "p99"}};
  for (std::size_t t = 0; t < std::min(run.tenants.size(), kShownTenants); ++t) {
    const TenantSummary& tenant = run.tenants[t];
    rows.push_back({Plain(tenant.name), absl::StrCat(tenant.requests),
                    absl::StrCat(tenant.finished), absl::StrCat(tenant.contended_tokens),
                    absl::StrFormat("%.1f", tenant.ttft_p50_ms),
                    absl::StrFormat("%.1f", tenant.ttft_p99_ms)});
  }
  absl::StrAppend(&out, "\n", run.label.empty() ? "" : run.label + "\n", AlignColumns(rows));
}

}  // namespace

std::string ReportTable(absl::Span<const Summary> runs) {
  if (runs.size() > kMostColumns) return BriefTable(runs);
  std::vector<std::vector<std::string>> rows;
  if (runs.size() > 1 || (runs.size() == 1 && !runs[0].label.empty())) {
    std::vector<std::string>& head = rows.emplace_back(1);
    for (const Summary& run : runs) head.push_back(Plain(run.label));
  }
  for (const Metric& metric : kMetrics) {
    const bool zero = std::all_of(runs.begin(), runs.end(),
                                  [&](const Summary& run) { return metric.value(run) == 0; });
    if (zero && metric.quiet) continue;
    std::vector<std::string>& row = rows.emplace_back();
    row.emplace_back(metric.title);
    for (const Summary& run : runs) {
      row.push_back(Cell(metric, run));
    }
  }
  std::string out = AlignColumns(rows);
  for (const Summary& run : runs) AppendTenants(run, out);
  return out;
}

std::string ReportJson(absl::Span<const Summary> runs) {
  Json list = Json::array();
  for (const Summary& run : runs) {
    Json& out = list.emplace_back(Json::object());
    out["label"] = run.label;
    for (const Metric& metric : kMetrics) out[metric.key] = metric.value(run);
    AddClasses("by_prompt", run.by_prompt, out);
    AddClasses("by_priority", run.by_priority, out);
    Json& tenants = out["tenants"] = Json::array();
    for (const TenantSummary& tenant : run.tenants) {
      tenants.push_back({{"name", tenant.name},
                         {"requests", tenant.requests},
                         {"finished", tenant.finished},
                         {"contended_tokens", tenant.contended_tokens},
                         {"ttft_p50_ms", tenant.ttft_p50_ms},
                         {"ttft_p99_ms", tenant.ttft_p99_ms}});
    }
  }
  const Json report = {{"runs", std::move(list)}};
  return report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ReportCsv(absl::Span<const Summary> runs) {
  std::string csv = "label";
  for (const Metric& metric : kMetrics) absl::StrAppend(&csv, ",", metric.key);
  csv += "\n";
  for (const Summary& run : runs) {
    csv += Plain(run.label);
    for (const Metric& metric : kMetrics) {
      absl::StrAppend(&csv, ",", absl::StrFormat("%.9g", metric.value(run)));
    }
    csv += "\n";
  }
  return csv;
}

std::string RequestsCsv(const Workload& workload, const RunRecord& record) {
  static constexpr const char* kEnds[] = {"finished", "cancelled", "expired", "refused", "failed"};
  std::string csv =
      "arrival_s,first_token_s,last_token_s,prompt_tokens,output_tokens,cached_tokens,"
      "preemptions,tenant,end\n";
  for (std::size_t i = 0; i < record.requests.size(); ++i) {
    const RequestRecord& r = record.requests[i];
    const SimulatedRequest& w = workload.requests[i];
    absl::StrAppendFormat(
        &csv, "%.9f,%.9f,%.9f,%d,%d,%d,%d,%s,%s\n", 1e-9 * static_cast<double>(r.arrival_ns),
        1e-9 * static_cast<double>(r.first_token_ns), 1e-9 * static_cast<double>(r.last_token_ns),
        w.prompt_tokens, r.output_tokens, r.cached_tokens, r.preemptions,
        Plain(workload.tenants[w.tenant]),
        r.outcome ? kEnds[static_cast<std::size_t>(*r.outcome)] : "none");
  }
  return csv;
}

}  // namespace flotilla::simulator
