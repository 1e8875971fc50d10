// `flotilla loadtest`: load on any server with the API of OpenAI, and what came of it.
#pragma once

#include "absl/status/status.h"
#include "cli/loadtest_flags.h"

namespace flotilla::cli {

// Does what the flags say: a run, a sweep or a comparison. The table goes to standard output,
// progress to standard error, and files to where --json and --report say. Errors: flags that do not
// fit together, a file or a host that cannot be used, a run in which every request failed.
absl::Status RunLoadtest(const LoadtestFlags& flags);

}  // namespace flotilla::cli
