// How the messages of worker.proto write lists of rows as columns, and how what a
// peer wrote is judged before it is read.
//
// A column has an entry for every row, or is empty, which gives every row its
// usual value. Nothing here allocates by a number that a message names: only by
// what it contains. Used by proto/codec alone; pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/types/ids.h"
#include "google/protobuf/repeated_field.h"

namespace flotilla::columns {

template <class T>
using Column = google::protobuf::RepeatedField<T>;

// INVALID_ARGUMENT: "<field>: <what>".
absl::Status Wrong(absl::string_view field, absl::string_view what);

// INVALID_ARGUMENT unless a list of `size` entries has one per row; and the same
// for a column, which may be empty instead.
absl::Status CheckRows(absl::string_view field, int size, std::size_t rows);
absl::Status CheckColumn(absl::string_view field, int size, std::size_t rows);
// INVALID_ARGUMENT unless the counts of `rows` rows, `usual` each if the column is
// empty, add up to `size`. Checks the column as well.
absl::Status CheckCounts(absl::string_view field, const Column<std::uint32_t>& counts,
                         std::uint32_t usual, std::size_t rows, int size);
// Token ids of the peer: INVALID_ARGUMENT for a negative one.
absl::Status CheckTokens(absl::string_view field, const Column<std::int32_t>& tokens);

// The entry of a row. The column was checked.
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
  // There is a next one.
  std::uint32_t Next() { return column_.Get(at_++); }

 private:
  const Column<std::uint32_t>& column_;
  int at_ = 0;
};

inline void AddTokens(const std::vector<TokenId>& tokens, Column<std::int32_t>* column) {
  column->Add(tokens.begin(), tokens.end());
}

}  // namespace flotilla::columns
