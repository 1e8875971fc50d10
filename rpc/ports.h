// Asks the system why a port cannot be listened on, because gRPC only prints the cause. A check
// before a model is loaded saves the loading.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace flotilla::rpc {

// OK: `port` of `host`, an address or a name, can be listened on now; port 0 is any free one.
// Else the message is only the system's, such as "Address already in use". The code is
// UNAVAILABLE if another port may work, and INVALID_ARGUMENT if the host is unknown or not this
// machine's. A name is resolved, which may block; one of its addresses is enough. The port is
// not kept, so another process may take it first.
absl::Status CheckPort(const std::string& host, std::uint16_t port);

// The error when a library could not listen on `address` (of JoinAddress): UNAVAILABLE, with the
// cause, as far as the system still reports it.
absl::Status CannotListen(const std::string& address);

}  // namespace flotilla::rpc
