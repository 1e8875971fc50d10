// AlignColumns: a table as plain text, for terminals and reports.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace flotilla {

// Returns the rows as text, in columns as wide as their widest cell. The first column is aligned
// left, the others right.
std::string AlignColumns(absl::Span<const std::vector<std::string>> rows);

}  // namespace flotilla
