// The network by which the ranks of a group on several hosts reach their agent and each
// other.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/rt/unique_fd.h"

namespace flotilla::worker {

// Returns this host's address in `network`, which is ADDRESS/BITS in IPv4.
// INVALID_ARGUMENT: `network` does not have that form; NOT_FOUND: this host has no address
// in it.
absl::StatusOr<std::string> AddressInNetwork(const std::string& network);

// Listens on `address` at any free port; the socket does not block. UNAVAILABLE: the system
// cannot listen there.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& address);
// The port that a socket listens on.
int PortOf(const UniqueFd& socket);
// Connects to host:port. Errors: UNAVAILABLE, INVALID_ARGUMENT.
absl::StatusOr<UniqueFd> ConnectTcp(const std::string& agent);
// Both ends call it on their socket. Small messages then go out at once, and the connection
// ends when the other side has answered nothing for some seconds.
void TuneTcp(const UniqueFd& socket);

}  // namespace flotilla::worker
