// `flotilla run`: answers a file of requests with the engine of `flotilla serve`, and listens on no
// port. Run again after it was killed, it goes on where it was.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "cli/flags.h"

namespace CLI {
class App;
}  // namespace CLI

namespace flotilla::cli {

// The exit codes of `flotilla run`, beside 1 for an error.
inline constexpr int kAllSucceeded = 0;   // all requests are answered, with status 200
inline constexpr int kSomeFailed = 3;     // all requests are answered, some with another status
inline constexpr int kInterrupted = 130;  // a signal asked to stop, and lines are left

struct RunFlags {
  RoleFlags role;  // those of the engine
  std::string input, output;
  std::int64_t concurrency = 0;  // 0: half more than the sequences that run at once
};

// `flags` outlives `app`.
void AddRunFlags(CLI::App& app, RunFlags* flags);

// Returns the exit code. Errors: lines of the input that are wrong, which are written to standard
// error; a model that cannot be run; files that cannot be read or written. Called from main before
// any thread is started.
absl::StatusOr<int> RunBatch(const RunFlags& flags, const std::string& version);

}  // namespace flotilla::cli
