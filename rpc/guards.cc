#include "rpc/guards.h"

#include "rpc/accept_guard.h"
#include "rpc/transport_guard.h"

namespace flotilla::rpc {

absl::Status CheckGuards() {
  if (!TransportIsGuarded()) {
    return absl::FailedPreconditionError(
        "this build's gRPC cannot be guarded against floods of frames: it is to be linked as "
        "a shared library, of version 1.51, that calls its own functions through the dynamic "
        "linker");
  }
  if (!AcceptGuard::InPlace()) {
    return absl::FailedPreconditionError(
        "this build's gRPC cannot be kept from taking all descriptors: it is to be linked as a "
        "shared library, of version 1.51, that calls its own functions through the dynamic "
        "linker");
  }
  return absl::OkStatus();
}

}  // namespace flotilla::rpc
