#include "cli/top_view.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace flotilla {
namespace {

RouterRow MakeRouterRow(const std::string& address, const MetricsPage& now,
                        const MetricsChange& change) {
  constexpr char kFirstToken[] = "flotilla_router_time_to_first_token_seconds";
  constexpr char kInterToken[] = "flotilla_router_inter_token_latency_seconds";
  return {.address = address,
          .ready = now.Sum("flotilla_router_ready") > 0,
          .draining = now.Sum("flotilla_router_draining") > 0,
          .in_flight = now.Sum("flotilla_router_requests_in_flight"),
          .requests_per_s = change.Rate("flotilla_router_requests_total"),
          .refused_per_s = change.Rate("flotilla_router_rejected_total"),
          .first_token_p50_s = change.Quantile(kFirstToken, 0.5),
          .first_token_p99_s = change.Quantile(kFirstToken, 0.99),
          .inter_token_p50_s = change.Quantile(kInterToken, 0.5),
          .inter_token_p99_s = change.Quantile(kInterToken, 0.99)};
}

GroupRow MakeGroupRow(const std::string& address, const MetricsPage& now,
                      const MetricsChange& change) {
  constexpr char kTokens[] = "flotilla_scheduler_tokens_total";
  constexpr char kBlocks[] = "flotilla_kv_blocks";
  return {.address = address,
          .model = now.Label("flotilla_scheduler_group_ready", "model"),
          .ready = now.Sum("flotilla_scheduler_group_ready") > 0,
          .draining = now.Sum("flotilla_scheduler_draining") > 0,
          .waiting = now.Sum("flotilla_scheduler_requests_waiting"),
          .running = now.Sum("flotilla_scheduler_requests_running"),
          .blocks_used = now.Sum(kBlocks, {{"state", "used"}}),
          .blocks_total = now.Sum(kBlocks, {{"state", "total"}}),
          .step_age_s = now.Sum("flotilla_scheduler_step_age_seconds"),
          .batch = change.Ratio("flotilla_scheduler_batch_size_sum",
                                "flotilla_scheduler_batch_size_count"),
          .output_tokens_per_s = change.Rate(kTokens, {{"kind", "generated"}}),
          .prompt_tokens_per_s = change.Rate(kTokens, {{"kind", "prompt"}}),
          .hit_ratio = change.Ratio("flotilla_kv_prefix_hit_tokens_total",
                                    "flotilla_kv_prefix_lookup_tokens_total")};
}

WorkerRow MakeWorkerRow(const std::string& address, const MetricsPage& now,
                        const MetricsChange& change) {
  constexpr char kSteps[] = "flotilla_worker_steps_total";
  constexpr char kCompute[] = "flotilla_worker_compute_seconds_total";
  return {.address = address,
          .busy = change.Rate(kCompute),
          .steps_per_s = change.Rate(kSteps),
          .tokens_per_s = change.Rate("flotilla_worker_rows_total"),
          .s_per_step = change.Ratio(kCompute, kSteps),
          .cpu_cores = change.Rate("process_cpu_seconds_total"),
          .resident_bytes = now.Sum("process_resident_memory_bytes")};
}

// Columns as wide as their widest cell; the first is left-aligned, with room for text.
class Table {
 public:
  explicit Table(std::vector<std::string> header) { Add(std::move(header)); }
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

  std::string Text() const {
    std::vector<std::size_t> widths(rows_.front().size());
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string text;
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::string padding(widths[i] - row[i].size(), ' ');
        absl::StrAppend(&text, i == 0 ? row[i] + padding : "  " + padding + row[i]);
      }
      text += '\n';
    }
    return text;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string Number(std::optional<double> value, int digits = 1) {
  return value.has_value() ? absl::StrFormat("%.*f", digits, *value) : "-";
}
std::string Percent(std::optional<double> ratio) {
  return ratio.has_value() ? absl::StrFormat("%.0f%%", *ratio * 100) : "-";
}
// Three figures or so, in the unit that suits.
std::string Seconds(std::optional<double> value) {
  if (!value.has_value()) return "-";
  return *value < 1 ? absl::StrFormat("%.1fms", *value * 1e3) : absl::StrFormat("%.2fs", *value);
}
std::string State(bool ready, bool draining) {
  return draining ? "draining" : ready ? "ready" : "NOT READY";
}

}  // namespace

TopView MakeTopView(absl::Span<const Look> before, absl::Span<const Look> now) {
  TopView view;
  for (std::size_t i = 0; i < now.size(); ++i) {
    const auto& [address, page] = now[i];
    if (!page.ok()) {
      view.missing.push_back(absl::StrCat(address, ": ", page.status().message()));
      continue;
    }
    const bool known = i < before.size() && before[i].page.ok();
    const MetricsChange change(known ? &*before[i].page : nullptr, *page);
    const std::size_t rows = view.routers.size() + view.groups.size() + view.workers.size();
    if (page->Has("flotilla_router_ready")) {
      view.routers.push_back(MakeRouterRow(address, *page, change));
    }
    if (page->Has("flotilla_scheduler_group_ready")) {
      view.groups.push_back(MakeGroupRow(address, *page, change));
    }
    if (page->Has("flotilla_worker_steps_total")) {
      view.workers.push_back(MakeWorkerRow(address, *page, change));
    }
    if (rows == view.routers.size() + view.groups.size() + view.workers.size()) {
      view.missing.push_back(address + ": these are not flotilla's metrics");
    }
  }
  return view;
}

std::string TopText(const TopView& view) {
  std::vector<std::string> parts;
  if (!view.routers.empty()) {
    Table table({"ROUTER", "STATE", "IN FLIGHT", "REQ/S", "REFUSED/S", "TTFT P50", "P99", "ITL P50",
                 "P99"});
    for (const RouterRow& row : view.routers) {
      table.Add({row.address, State(row.ready, row.draining), Number(row.in_flight, 0),
                 Number(row.requests_per_s), Number(row.refused_per_s),
                 Seconds(row.first_token_p50_s), Seconds(row.first_token_p99_s),
                 Seconds(row.inter_token_p50_s), Seconds(row.inter_token_p99_s)});
    }
    parts.push_back(table.Text());
  }
  if (!view.groups.empty()) {
    Table table({"GROUP", "STATE", "WAITING", "RUNNING", "BATCH", "BLOCKS", "OUT/S", "PROMPT/S",
                 "HITS", "STEP AGE", "MODEL"});
    for (const GroupRow& row : view.groups) {
      table.Add({row.address, State(row.ready, row.draining), Number(row.waiting, 0),
                 Number(row.running, 0), Number(row.batch),
                 absl::StrFormat("%.0f/%.0f", row.blocks_used, row.blocks_total),
                 Number(row.output_tokens_per_s), Number(row.prompt_tokens_per_s),
                 Percent(row.hit_ratio), Seconds(row.step_age_s), row.model});
    }
    parts.push_back(table.Text());
  }
  if (!view.workers.empty()) {
    Table table({"WORKER", "BUSY", "STEPS/S", "TOKENS/S", "PER STEP", "CPUS", "MEMORY"});
    for (const WorkerRow& row : view.workers) {
      table.Add({row.address, Percent(row.busy), Number(row.steps_per_s), Number(row.tokens_per_s),
                 Seconds(row.s_per_step), Number(row.cpu_cores),
                 absl::StrFormat("%.0fMiB", row.resident_bytes / (1 << 20))});
    }
    parts.push_back(table.Text());
  }
  std::string missing;
  for (const std::string& one : view.missing) absl::StrAppend(&missing, "MISSING  ", one, "\n");
  if (!missing.empty()) parts.push_back(std::move(missing));
  std::string text;
  for (const std::string& part : parts) absl::StrAppend(&text, text.empty() ? "" : "\n", part);
  return text;
}

}  // namespace flotilla
