// TransportGuard: bounds the memory that an HTTP/2 connection can make gRPC keep, before any call
// and any proof of membership.
//
// gRPC 1.51, the version of Debian 12, buffers a header block without bound, in memory that no
// grpc::ResourceQuota counts, and checks GRPC_ARG_MAX_METADATA_SIZE only after it has decoded the
// block (CVE-2023-33953). It offers no seam in front of its parser. So this library defines the
// function by which gRPC reads a connection's bytes, and the dynamic linker uses it instead of
// gRPC's own. The function shows the bytes to InboundFrames, calls gRPC's own, and then lets
// HeldMessages count what gRPC holds. docs/adr/0003-header-blocks.md has the alternatives, and
// says when this guard may be removed.
#pragma once

namespace flotilla::rpc {

// Whether gRPC's transport calls this library; see CheckGuards.
bool TransportIsGuarded();

}  // namespace flotilla::rpc
