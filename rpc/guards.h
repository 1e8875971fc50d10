// Checks, for servers, that the guards of gRPC 1.51 against hostile connections are in place.
#pragma once

#include "absl/status/status.h"

namespace flotilla::rpc {

// OK if TransportGuard and AcceptGuard are in place. Every server calls this before it listens.
// FAILED_PRECONDITION: connections of this process are not guarded, because its gRPC is linked
// in another way.
absl::Status CheckGuards();

}  // namespace flotilla::rpc
