#include "common/traces/delimited_text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace flotilla {
namespace {

// The part of a cell that a message shows, because a cell may hold any text.
std::string Shown(absl::string_view text) {
  return absl::StrCat("\"", absl::CEscape(text.substr(0, 40)), text.size() > 40 ? "..." : "", "\"");
}

absl::Status CheckHeader(const std::vector<absl::string_view>& header, std::uint64_t line,
                         const std::vector<absl::string_view>& known) {
  for (std::size_t i = 0; i < header.size(); ++i) {
    if (std::find(known.begin(), known.end(), header[i]) == known.end()) {
      return LineError(line, absl::StrCat("unknown column ", Shown(header[i]), "; known are ",
                                          absl::StrJoin(known, ", ")));
    }
    if (std::find(header.begin(), header.begin() + static_cast<std::ptrdiff_t>(i), header[i]) !=
        header.begin() + static_cast<std::ptrdiff_t>(i)) {
      return LineError(line, absl::StrCat("column ", Shown(header[i]), " comes twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int DelimitedText::Find(absl::string_view column) const {
  const auto it = std::find(header.begin(), header.end(), column);
  return it == header.end() ? -1 : static_cast<int>(it - header.begin());
}

absl::StatusOr<DelimitedText> ParseDelimited(absl::string_view text,
                                             const std::vector<absl::string_view>& known_columns,
                                             std::uint64_t max_rows) {
  DelimitedText table;
  std::uint64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    if (line.find('"') != absl::string_view::npos) return LineError(number, "quotes have no use");
    std::vector<absl::string_view> cells = absl::StrSplit(line, ',');
    for (absl::string_view& cell : cells) cell = absl::StripAsciiWhitespace(cell);
    if (table.header.empty()) {
      if (absl::Status s = CheckHeader(cells, number, known_columns); !s.ok()) return s;
      table.header = std::move(cells);
      continue;
    }
    if (cells.size() != table.header.size()) {
      return LineError(number,
                       absl::StrCat(cells.size(), " cells, the header has ", table.header.size()));
    }
    if (table.rows.size() == max_rows) {
      return LineError(number, absl::StrCat("more than ", max_rows, " rows"));
    }
    std::vector<TextCell>& row = table.rows.emplace_back();
    row.reserve(cells.size());
    for (std::size_t i = 0; i < cells.size(); ++i) {
      row.push_back({.text = cells[i], .line = number, .column = table.header[i]});
    }
  }
  if (table.header.empty()) return absl::InvalidArgumentError("no header line");
  return table;
}

absl::Status LineError(std::uint64_t line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

absl::Status CellError(const TextCell& cell, absl::string_view what) {
  return LineError(cell.line, absl::StrCat("column ", cell.column, ": ", what));
}

absl::StatusOr<double> CellNumber(const TextCell& cell, double min, double max) {
  double value = 0;
  if (!absl::SimpleAtod(cell.text, &value) || !std::isfinite(value)) {
    return CellError(cell, absl::StrCat(Shown(cell.text), " is not a number"));
  }
  if (value < min || value > max) {
    return CellError(cell, absl::StrCat(Shown(cell.text), " is not in ", min, "..", max));
  }
  return value;
}

absl::StatusOr<std::int64_t> CellInteger(const TextCell& cell, std::int64_t min, std::int64_t max) {
  std::int64_t value = 0;
  if (!absl::SimpleAtoi(cell.text, &value)) {
    return CellError(cell, absl::StrCat(Shown(cell.text), " is not a whole number"));
  }
  if (value < min || value > max) {
    return CellError(cell, absl::StrCat(value, " is not in ", min, "..", max));
  }
  return value;
}

}  // namespace flotilla
