// The caller of flotilla.v1.Host. It takes the place of ssh when mpirun starts its daemon
// on another host of a worker group.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/credentials.h"

namespace flotilla::worker {

// Returns the arguments of orted from the words that mpirun gives a remote shell after the
// host: `orted`, then words that a shell would split and unquote. mpirun only ever quotes
// whole words. INVALID_ARGUMENT: the command is not orted, or only a shell can read it.
absl::StatusOr<std::vector<std::string>> DaemonArguments(const std::vector<std::string>& words);

struct RunOnHostOptions {
  std::string address;  // host:port
  std::vector<std::string> arguments;
  rpc::Credentials* credentials = nullptr;      // null: no proofs
  absl::Duration patience = absl::Seconds(10);  // for a host that cannot be reached yet
  // Receives what the daemon prints. Returns false to end the daemon.
  std::function<bool(std::string_view)> on_output;
};

// Runs the daemon until it ends, and returns its exit code. UNAVAILABLE: the host cannot be
// reached, or was lost; CANCELLED: on_output returned false; other errors as for Host.Run.
absl::StatusOr<int> RunOnHost(const RunOnHostOptions& options);

}  // namespace flotilla::worker
