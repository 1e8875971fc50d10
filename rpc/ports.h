// Why a port cannot be listened on, asked of the system: gRPC only prints the cause. Asked
// before a model is loaded it saves the loading.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace flotilla::rpc {

// OK: somebody may listen on `port` of `host` now, an address or a name; port 0 is any free
// one. Else the message is the system's alone, "Address already in use": UNAVAILABLE where
// another port may do, INVALID_ARGUMENT where the host is not this machine's or unknown.
// A name is resolved, which may block; one of its addresses is enough. Nothing is kept: another
// process may come first.
absl::Status CheckPort(const std::string& host, std::uint16_t port);

// UNAVAILABLE, and why, as far as the system can be asked again, for a library that could
// not listen on `address`, of JoinAddress.
absl::Status CannotListen(const std::string& address);

}  // namespace flotilla::rpc
