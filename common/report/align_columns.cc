#include "common/report/align_columns.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"

namespace flotilla {

std::string AlignColumns(absl::Span<const std::vector<std::string>> rows) {
  std::vector<std::size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const std::vector<std::string>& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&out, i == 0 ? "" : "  ", i == 0 ? "" : space, row[i],
                      i == 0 && row.size() > 1 ? space : "");
    }
    out += "\n";
  }
  return out;
}

}  // namespace flotilla
