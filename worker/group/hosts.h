// The network by which the ranks of a group on several hosts reach their agent and each
// other.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/rt/unique_fd.h"

namespace flotilla {

// This host's address in `network`, ADDRESS/BITS in IPv4. INVALID_ARGUMENT: it is not
// that; NOT_FOUND: this host has none in it.
absl::StatusOr<std::string> AddressInNetwork(const std::string& network);

// Listens on `address`, any free port, and does not block. UNAVAILABLE.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& address);
// The port that a socket listens on.
int PortOf(const UniqueFd& socket);
// Connects to host:port. UNAVAILABLE, INVALID_ARGUMENT.
absl::StatusOr<UniqueFd> ConnectTcp(const std::string& agent);
// For both ends: small messages at once, and an end of the connection once the other side
// has answered nothing for some seconds.
void TuneTcp(const UniqueFd& socket);

}  // namespace flotilla
