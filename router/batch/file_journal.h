// The journal of a FileLedger: a text file with a record a line, which is only appended to. A line
// is a checksum and JSON:
//
//   cbf29ce484222325 {"files":[{"id":"file-...","number":1,...}]}
//
// A process may die while it writes the last line, so what follows the last whole line does not
// count, and neither do whole lines at the end that are damaged: nobody was told of them yet. A
// damaged line before a good one is an error. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "router/batch/file_ledger.h"

namespace flotilla::router {

// A line of the journal, with its line end.
std::string JournalLine(const LedgerRecord& record);

// Reads a line without its line end. DATA_LOSS: it is damaged, or no record.
absl::StatusOr<LedgerRecord> ReadJournalLine(std::string_view line);

// Applies all records of a journal to `ledger`, which is empty. Returns how many bytes at its
// beginning count. DATA_LOSS names the line that is damaged, or that does not fit those before it.
absl::StatusOr<std::size_t> ReplayJournal(std::string_view journal, FileLedger& ledger);

}  // namespace flotilla::router
