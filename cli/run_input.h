// The input of `flotilla run`, which is read twice. One thread.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/rt/unique_fd.h"

namespace flotilla::cli {

// Opens a file for reading, at its begin. "-" is standard input. What cannot be read twice, such as
// a pipe, is copied to a file without a name in $TMPDIR, or else /tmp. UNAVAILABLE names the path.
absl::StatusOr<UniqueFd> OpenInput(const std::string& path);

}  // namespace flotilla::cli
