// Reads and writes small text files as a whole, for tools.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace flotilla::cli {

// NOT_FOUND: the file cannot be opened. RESOURCE_EXHAUSTED: the file is larger than 1 GiB.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// Makes the folder if it does not exist. FAILED_PRECONDITION: the file cannot be written.
absl::Status WriteTextFile(const std::string& folder, const std::string& name,
                           const std::string& text);

}  // namespace flotilla::cli
