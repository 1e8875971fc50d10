// Whole text files, for tools: small, read and written at once.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace flotilla {

// NOT_FOUND: it cannot be opened. RESOURCE_EXHAUSTED: it is larger than 1 GiB.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// Makes the folder if it is not there. FAILED_PRECONDITION: it cannot be written.
absl::Status WriteTextFile(const std::string& folder, const std::string& name,
                           const std::string& text);

}  // namespace flotilla
