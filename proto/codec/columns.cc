#include "proto/codec/columns.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace flotilla::codec::columns {

absl::Status Wrong(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

absl::Status CheckRows(absl::string_view field, int size, std::size_t rows) {
  if (static_cast<std::size_t>(size) == rows) return absl::OkStatus();
  return Wrong(field, absl::StrCat(size, " entries for ", rows));
}

absl::Status CheckColumn(absl::string_view field, int size, std::size_t rows) {
  return size == 0 ? absl::OkStatus() : CheckRows(field, size, rows);
}

absl::Status CheckCounts(absl::string_view field, const Column<std::uint32_t>& counts,
                         std::uint32_t usual, std::size_t rows, int size) {
  if (absl::Status s = CheckColumn(field, counts.size(), rows); !s.ok()) return s;
  std::uint64_t total = counts.empty() ? std::uint64_t{usual} * rows : 0;
  for (const std::uint32_t count : counts) total += count;
  if (total == static_cast<std::uint64_t>(size)) return absl::OkStatus();
  return Wrong(field, absl::StrCat("they add up to ", total, ", not to ", size));
}

absl::Status CheckTokens(absl::string_view field, const Column<std::int32_t>& tokens) {
  const auto negative = std::find_if(tokens.begin(), tokens.end(), [](auto t) { return t < 0; });
  if (negative == tokens.end()) return absl::OkStatus();
  return Wrong(field, absl::StrCat("token ", *negative));
}

}  // namespace flotilla::codec::columns
