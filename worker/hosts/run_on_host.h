// The caller of flotilla.v1.Host: what stands for ssh when mpirun starts its daemon on
// another host of a worker group.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/credentials.h"

namespace flotilla {

// The arguments of orted in the words that mpirun gives a remote shell after the host:
// `orted`, then words that a shell would take apart, of which mpirun only ever quotes whole
// ones. INVALID_ARGUMENT: it is another command, or one for which it takes a shell.
absl::StatusOr<std::vector<std::string>> DaemonArguments(const std::vector<std::string>& words);

struct RunOnHostOptions {
  std::string address;  // host:port
  std::vector<std::string> arguments;
  rpc::Credentials* credentials = nullptr;      // null: no proofs
  absl::Duration patience = absl::Seconds(10);  // for a host that cannot be reached yet
  // Receives what the daemon prints; false: enough, end it.
  std::function<bool(std::string_view)> on_output;
};

// Runs the daemon until its end: its exit code. UNAVAILABLE: the host cannot be reached, or
// was lost; CANCELLED: on_output had enough; else as Host.Run.
absl::StatusOr<int> RunOnHost(const RunOnHostOptions& options);

}  // namespace flotilla
