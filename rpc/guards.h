// What stands between gRPC 1.51 and hostile connections, for servers to ask about.
#pragma once

#include "absl/status/status.h"

namespace flotilla::rpc {

// Whether TransportGuard and AcceptGuard are in place, which every server asks before it
// listens. FAILED_PRECONDITION: connections of this process are not guarded, since its gRPC is
// linked in another way.
absl::Status CheckGuards();

}  // namespace flotilla::rpc
