// Results of load tests as tables of plain text, for terminals.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "loadtest/core/load_result.h"

namespace flotilla::loadtest {

// One run: its figures, its latencies, its failures by reason. Several runs: one column for each,
// and with two runs the change from the first to the second in percent.
std::string ResultTable(absl::Span<const LoadResult> runs);

// One line for each run, with the main figures: for sweeps.
std::string SweepTable(absl::Span<const LoadResult> runs);

}  // namespace flotilla::loadtest
