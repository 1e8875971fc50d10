// DelimitedText: a small CSV reader for tables of numbers and names, whose errors
// name line and column. It knows no quotes: a cell is the text between two commas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace flotilla {

// One cell and its place. Both are views into the text.
struct TextCell {
  absl::string_view text;
  std::uint64_t line = 0;    // 1-based
  absl::string_view column;  // of the header
};

struct DelimitedText {
  std::vector<absl::string_view> header;
  std::vector<std::vector<TextCell>> rows;  // [rows][header.size()]

  // The index of a column; -1: there is none.
  int Find(absl::string_view column) const;
};

// Splits `text`, which outlives the result: the first line that is neither empty
// nor a comment (#) is the header. INVALID_ARGUMENT: no header, an empty, repeated
// or unknown column, a row of another width, a quote, more than `max_rows` rows.
absl::StatusOr<DelimitedText> ParseDelimited(absl::string_view text,
                                             const std::vector<absl::string_view>& known_columns,
                                             std::uint64_t max_rows);

// The cell as a number of [min, max]. INVALID_ARGUMENT names line and column.
absl::StatusOr<double> CellNumber(const TextCell& cell, double min, double max);
// The same for whole numbers.
absl::StatusOr<std::int64_t> CellInteger(const TextCell& cell, std::int64_t min, std::int64_t max);

// INVALID_ARGUMENT "line L: what".
absl::Status LineError(std::uint64_t line, absl::string_view what);

// INVALID_ARGUMENT "line L, column C: what".
absl::Status CellError(const TextCell& cell, absl::string_view what);

}  // namespace flotilla
