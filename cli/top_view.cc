#include "cli/top_view.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/obs/printable.h"

namespace flotilla::cli {
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

ReplicaRow MakeReplicaRow(const std::string& address, const MetricsPage& now,
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
  std::optional<double> cores = change.Rate("process_cpu_seconds_total");
  if (cores.has_value()) {
    *cores += change.Rate("flotilla_worker_rank_cpu_seconds_total").value_or(0);
  }
  return {.address = address,
          .busy = change.Rate(kCompute),
          .steps_per_s = change.Rate(kSteps),
          .tokens_per_s = change.Rate("flotilla_worker_rows_total"),
          .s_per_step = change.Ratio(kCompute, kSteps),
          .cpu_cores = cores,
          .resident_bytes = now.Sum("process_resident_memory_bytes") +
                            now.Sum("flotilla_worker_rank_resident_memory_bytes")};
}

// The number of characters of a UTF-8 text.
std::size_t Characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// Returns the line, or as much of it as fits and a sign that there is more.
std::string Cut(std::string line, std::optional<std::size_t> columns) {
  if (!columns.has_value() || Characters(line) <= *columns) return line;
  std::size_t bytes = 0;
  for (std::size_t left = *columns; bytes < line.size(); ++bytes) {
    if ((line[bytes] & 0xc0) != 0x80 && left-- <= 1) break;
  }
  return line.substr(0, bytes) + "…";
}

// A table whose columns are as wide as their widest cell. The first column is left-aligned.
class Table {
 public:
  struct Column {
    const char* title;
    int leave_out;  // the lowest number is left out first; kAlways: never left out
  };
  static constexpr int kAlways = 100;

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {
    std::vector<std::string> titles;
    for (const Column& column : columns_) titles.push_back(column.title);
    Add(titles);
  }
  void Add(const std::vector<std::string>& row) {
    rows_.emplace_back();
    for (const std::string& cell : row) rows_.back().push_back(Printable(cell));
  }

  std::string Text(std::optional<std::size_t> room) {
    while (room.has_value() && Width() > *room && LeaveOne()) {
    }
    const std::vector<std::size_t> widths = Widths();
    std::string text;
    for (const auto& row : rows_) {
      std::string line;
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::string padding(widths[i] - Characters(row[i]), ' ');
        absl::StrAppend(&line, i == 0 ? row[i] + padding : "  " + padding + row[i]);
      }
      absl::StrAppend(&text, Cut(std::move(line), room), "\n");
    }
    return text;
  }

 private:
  std::vector<std::size_t> Widths() const {
    std::vector<std::size_t> widths(columns_.size());
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        widths[i] = std::max(widths[i], Characters(row[i]));
      }
    }
    return widths;
  }

  std::size_t Width() const {
    std::size_t all = 0;
    for (const std::size_t width : Widths()) all += (all == 0 ? 0 : 2) + width;
    return all;
  }

  // Leaves one column out. False: none may be left out.
  bool LeaveOne() {
    const auto least = std::min_element(
        columns_.begin(), columns_.end(),
        [](const Column& a, const Column& b) { return a.leave_out < b.leave_out; });
    if (least->leave_out == kAlways) return false;
    const auto index = least - columns_.begin();
    columns_.erase(least);
    for (auto& row : rows_) row.erase(row.begin() + index);
    return true;
  }

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

std::string Number(std::optional<double> value, int digits = 1) {
  return value.has_value() ? absl::StrFormat("%.*f", digits, *value) : "-";
}
std::string Percent(std::optional<double> ratio) {
  return ratio.has_value() ? absl::StrFormat("%.0f%%", *ratio * 100) : "-";
}
// Formats a time with about three digits, in a suitable unit.
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
    const std::size_t rows = view.routers.size() + view.replicas.size() + view.workers.size();
    if (page->Has("flotilla_router_ready")) {
      view.routers.push_back(MakeRouterRow(address, *page, change));
    }
    if (page->Has("flotilla_scheduler_group_ready")) {
      view.replicas.push_back(MakeReplicaRow(address, *page, change));
    }
    if (page->Has("flotilla_worker_steps_total")) {
      view.workers.push_back(MakeWorkerRow(address, *page, change));
    }
    if (rows == view.routers.size() + view.replicas.size() + view.workers.size()) {
      view.missing.push_back(address + ": these are not flotilla's metrics");
    }
  }
  return view;
}

namespace {

Table RouterTable(const std::vector<RouterRow>& rows) {
  Table table({{"ROUTER", Table::kAlways},
               {"STATE", Table::kAlways},
               {"IN FLIGHT", 4},
               {"REQ/S", 7},
               {"REFUSED/S", 1},
               {"TTFT P50", 6},
               {"P99", 3},
               {"ITL P50", 5},
               {"P99", 2}});
  for (const RouterRow& row : rows) {
    table.Add({row.address, State(row.ready, row.draining), Number(row.in_flight, 0),
               Number(row.requests_per_s), Number(row.refused_per_s),
               Seconds(row.first_token_p50_s), Seconds(row.first_token_p99_s),
               Seconds(row.inter_token_p50_s), Seconds(row.inter_token_p99_s)});
  }
  return table;
}

Table ReplicaTable(const std::vector<ReplicaRow>& rows) {
  Table table({{"REPLICA", Table::kAlways},
               {"STATE", Table::kAlways},
               {"WAITING", 7},
               {"RUNNING", 8},
               {"BATCH", 1},
               {"BLOCKS", 6},
               {"OUT/S", 9},
               {"PROMPT/S", 2},
               {"HITS", 3},
               {"STEP AGE", 5},
               {"MODEL", 4}});
  for (const ReplicaRow& row : rows) {
    table.Add({row.address, State(row.ready, row.draining), Number(row.waiting, 0),
               Number(row.running, 0), Number(row.batch),
               absl::StrFormat("%.0f/%.0f", row.blocks_used, row.blocks_total),
               Number(row.output_tokens_per_s), Number(row.prompt_tokens_per_s),
               Percent(row.hit_ratio), Seconds(row.step_age_s), row.model});
  }
  return table;
}

Table WorkerTable(const std::vector<WorkerRow>& rows) {
  Table table({{"WORKER", Table::kAlways},
               {"BUSY", 4},
               {"STEPS/S", 1},
               {"TOKENS/S", 3},
               {"PER STEP", 2},
               {"CPUS", 6},
               {"MEMORY", 5}});
  for (const WorkerRow& row : rows) {
    table.Add({row.address, Percent(row.busy), Number(row.steps_per_s), Number(row.tokens_per_s),
               Seconds(row.s_per_step), Number(row.cpu_cores),
               absl::StrFormat("%.0fMiB", row.resident_bytes / (1 << 20))});
  }
  return table;
}

}  // namespace

std::string TopText(const TopView& view, std::optional<std::size_t> columns) {
  std::vector<std::string> parts;
  if (!view.routers.empty()) parts.push_back(RouterTable(view.routers).Text(columns));
  if (!view.replicas.empty()) parts.push_back(ReplicaTable(view.replicas).Text(columns));
  if (!view.workers.empty()) parts.push_back(WorkerTable(view.workers).Text(columns));
  std::string missing;
  for (const std::string& one : view.missing) {
    absl::StrAppend(&missing, Cut("MISSING  " + Printable(one), columns), "\n");
  }
  if (!missing.empty()) parts.push_back(std::move(missing));
  std::string text;
  for (const std::string& part : parts) absl::StrAppend(&text, text.empty() ? "" : "\n", part);
  return text;
}

}  // namespace flotilla::cli
