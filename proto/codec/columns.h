// Helpers that write lists of rows as columns in the messages of worker.proto, and that
// check the columns of a peer before they are read.
//
// A column has an entry for every row, or is empty; then every row has the usual
// value. Allocations depend on what a message contains, never on a number that it
// names. Only proto/codec uses this; pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/types/ids.h"
#include "google/protobuf/repeated_field.h"

namespace flotilla::codec::columns {

template <class T>
using Column = google::protobuf::RepeatedField<T>;

// INVALID_ARGUMENT: "<field>: <what>".
absl::Status Wrong(absl::string_view field, absl::string_view what);

// INVALID_ARGUMENT unless a list of `size` entries has one entry per row. The second
// function checks the same for a column, which may also be empty.
absl::Status CheckRows(absl::string_view field, int size, std::size_t rows);
absl::Status CheckColumn(absl::string_view field, int size, std::size_t rows);
// INVALID_ARGUMENT unless the counts of `rows` rows, `usual` each if the column is
// empty, add up to `size`. Checks the column as well.
absl::Status CheckCounts(absl::string_view field, const Column<std::uint32_t>& counts,
                         std::uint32_t usual, std::size_t rows, int size);
// INVALID_ARGUMENT if a token id of the peer is negative.
absl::Status CheckTokens(absl::string_view field, const Column<std::int32_t>& tokens);

// The entry of a row in a column that was checked.
template <class T>
T At(const Column<T>& column, std::size_t row, T usual) {
  return column.empty() ? usual : column.Get(static_cast<int>(row));
}

// Empties a column whose every entry is the usual one.
template <class T>
void DropUsual(T usual, Column<T>* column) {
  for (const T value : *column) {
    if (value != usual) return;
  }
  column->Clear();
}

// Reads a column entry by entry.
class ColumnReader {
 public:
  // `column` outlives the reader.
  explicit ColumnReader(const Column<std::uint32_t>& column) : column_(column) {}
  // There must be a next entry.
  std::uint32_t Next() { return column_.Get(at_++); }

 private:
  const Column<std::uint32_t>& column_;
  int at_ = 0;
};

inline void AddTokens(const std::vector<TokenId>& tokens, Column<std::int32_t>* column) {
  column->Add(tokens.begin(), tokens.end());
}

}  // namespace flotilla::codec::columns
