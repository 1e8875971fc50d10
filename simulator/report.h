// Report: summaries of one or several runs as a table for people, as JSON and as
// CSV for programs. All three have the same figures, from one table of metrics.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "simulator/run_record.h"
#include "simulator/summary.h"

namespace flotilla::simulator {

// One line per metric, one column per run. Metrics that are zero in every run and
// say nothing then (refusals, preemptions, ...) are left out. Tenants follow when a
// run has several, at most ten of them. More than six runs are one line each, with
// the main metrics.
std::string ReportTable(absl::Span<const Summary> runs);

// {"runs": [{"label": ..., metric: value, ..., "tenants": [...]}, ...]}, indented.
// Equal summaries give equal bytes.
std::string ReportJson(absl::Span<const Summary> runs);

// One line per run, one column per metric.
std::string ReportCsv(absl::Span<const Summary> runs);

// One line per request: arrival, first token, last token (seconds), tokens, end.
std::string RequestsCsv(const Workload& workload, const RunRecord& record);

}  // namespace flotilla::simulator
