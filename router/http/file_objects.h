// Files and batches as the OpenAI API writes them, and what clients ask of them. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "router/batch/file_ledger.h"

namespace flotilla::router {

// JSON objects.
std::string FileJson(const StoredFile& file);
std::string BatchJson(const StoredBatch& batch);

// A list of objects, given as {id, JSON}.
std::string ListJson(const std::vector<std::pair<std::string, std::string>>& objects,
                     bool has_more);

// Reads the query of a list: `limit` (1 to 100, for files 10,000), `after`, and for files `order`
// (asc, desc) and `purpose`. INVALID_ARGUMENT names the parameter.
absl::StatusOr<PageOrder> ParsePage(std::string_view query, bool of_files);

// Reads the body of POST /v1/batches. INVALID_ARGUMENT names the field.
absl::StatusOr<BatchOrder> ParseBatchOrder(std::string_view body);

// Checks how long a file is to be kept: 3600 to 2592000 seconds, as OpenAI's. INVALID_ARGUMENT
// names the field.
absl::StatusOr<std::int64_t> CheckLife(std::string_view field, std::string_view anchor,
                                       std::int64_t seconds);

// Decodes "%2F" and the like; a bad escape stays as it is.
std::string DecodePercent(std::string_view text);

}  // namespace flotilla::router
