// Results of load tests as JSON, for programs and for later comparisons.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "loadtest/core/load_result.h"

namespace flotilla::loadtest {

// {"runs": [{"label": ..., "settings": {...}, figure: value, ..., "ttft_ms": {"mean": ..., ...,
// "curve": [[ms, percent], ...]}, ..., "failures": {...}, "intervals": [...]}, ...]}, indented.
std::string ResultsJson(absl::Span<const LoadResult> runs);

// Reads what ResultsJson wrote. Figures that the text lacks are 0. INVALID_ARGUMENT: the text is
// not such JSON, or has no runs or more than 1,000.
absl::StatusOr<std::vector<LoadResult>> ParseResults(absl::string_view json);

}  // namespace flotilla::loadtest
