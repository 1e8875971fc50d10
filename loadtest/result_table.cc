#include "loadtest/result_table.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/obs/printable.h"
#include "common/report/align_columns.h"

namespace flotilla::loadtest {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string Cell(double value, int decimals) { return absl::StrFormat("%.*f", decimals, value); }

// The change of a figure, where there is one to compare with.
void AddChange(absl::Span<const LoadResult> runs, double before, double after,
               std::vector<std::string>& row) {
  if (runs.size() != 2) return;
  row.push_back(before == 0 ? "" : absl::StrFormat("%+.1f %%", 100 * (after - before) / before));
}

template <class Value>
void AddRow(absl::Span<const LoadResult> runs, const std::string& title, int decimals, Value value,
            Rows& rows) {
  std::vector<std::string>& row = rows.emplace_back();
  row.push_back(title);
  for (const LoadResult& run : runs) row.push_back(Cell(value(run), decimals));
  AddChange(runs, value(runs.front()), value(runs.back()), row);
}

void AddFigures(absl::Span<const LoadResult> runs, Rows& rows) {
  for (const Figure& figure : Figures()) {
    const bool zero = std::all_of(runs.begin(), runs.end(),
                                  [&](const LoadResult& run) { return run.*figure.value == 0; });
    if (zero && figure.quiet) continue;
    AddRow(
        runs, figure.title, figure.decimals,
        [&](const LoadResult& run) { return run.*figure.value; }, rows);
  }
}

void AddFailures(absl::Span<const LoadResult> runs, Rows& rows) {
  std::set<std::string> reasons;
  for (const LoadResult& run : runs) {
    for (const auto& [reason, count] : run.failures) reasons.insert(reason);
  }
  for (const std::string& reason : reasons) {
    AddRow(
        runs, absl::StrCat("failed: ", Printable(reason)), 0,
        [&](const LoadResult& run) {
          const auto it = run.failures.find(reason);
          return it == run.failures.end() ? 0 : it->second;
        },
        rows);
  }
}

std::string TableOfOne(const LoadResult& run) {
  const absl::Span<const LoadResult> runs(&run, 1);
  Rows rows;
  AddFigures(runs, rows);
  AddFailures(runs, rows);
  Rows latencies = {{"ms"}};
  for (const LatencyColumn& column : LatencyColumns()) latencies[0].emplace_back(column.key);
  for (const LatencyFigure& figure : LatencyFigures()) {
    std::vector<std::string>& row = latencies.emplace_back();
    row.emplace_back(figure.title);
    for (const LatencyColumn& column : LatencyColumns()) {
      row.push_back(Cell(run.*figure.value.*column.value, 1));
    }
  }
  return absl::StrCat(AlignColumns(rows), "\n", AlignColumns(latencies));
}

}  // namespace

std::string ResultTable(absl::Span<const LoadResult> runs) {
  if (runs.size() == 1) return TableOfOne(runs.front());
  Rows rows = {{""}};
  for (const LoadResult& run : runs) rows[0].push_back(Printable(run.label));
  if (runs.size() == 2) rows[0].emplace_back("change");
  AddFigures(runs, rows);
  AddFailures(runs, rows);
  for (const LatencyFigure& figure : LatencyFigures()) {
    for (const LatencyColumn& column : LatencyColumns()) {
      AddRow(
          runs, absl::StrCat(figure.title, " ", column.key, ", ms"), 1,
          [&](const LoadResult& run) { return run.*figure.value.*column.value; }, rows);
    }
  }
  return AlignColumns(rows);
}

std::string SweepTable(absl::Span<const LoadResult> runs) {
  Rows rows = {{"", "offered/s", "req/s", "good share", "failed", "out tok/s", "TTFT p50",
                "p99, ms", "ITL p50", "p99, ms", "TPOT p50"}};
  for (const LoadResult& run : runs) {
    rows.push_back({Printable(run.label), Cell(run.offered_per_s, 2), Cell(run.requests_per_s, 2),
                    Cell(run.good_share, 3), Cell(run.failed, 0), Cell(run.output_tokens_per_s, 1),
                    Cell(run.ttft_ms.p50, 1), Cell(run.ttft_ms.p99, 1), Cell(run.itl_ms.p50, 1),
                    Cell(run.itl_ms.p99, 1), Cell(run.tpot_ms.p50, 1)});
  }
  return AlignColumns(rows);
}

}  // namespace flotilla::loadtest
