// TransportGuard: bounds what an HTTP/2 connection may have gRPC keep, before any call and any
// proof.
//
// gRPC 1.51, Debian 12's, buffers a header block without bound, in memory that no
// grpc::ResourceQuota counts, and looks at GRPC_ARG_MAX_METADATA_SIZE only after it has decoded
// (CVE-2023-33953). It offers no seam in front of its parser. So this library defines the
// function by which gRPC reads a connection's bytes, which the dynamic linker then takes instead
// of gRPC's own; it lets InboundFrames see the bytes, goes on to gRPC's, and has HeldMessages
// count what that holds now. The alternatives,
// and when this may go, are in docs/adr/0003-header-blocks.md.
#pragma once

namespace flotilla::rpc {

// Whether gRPC's transport asks this library; see CheckGuards.
bool TransportIsGuarded();

}  // namespace flotilla::rpc
