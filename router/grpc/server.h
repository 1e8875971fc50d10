// GrpcServer: the gRPC frontend of a router: flotilla.v1.Inference, health, and on
// loopback addresses reflection, over an InferenceService.
//
// Example:
//   auto server = GrpcServer::Start({.host = "127.0.0.1", .port = 0}, &service);
//   if (!server.ok()) return server.status();
//   printf("grpc=%s\n", (*server)->address().c_str());
//   ...
//   (*server)->Stop(absl::Seconds(5));
//
// Receives its calls on a poller, and owns one I/O loop thread, on which detokenization runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/auth/tls_files.h"
#include "router/key_gate.h"
#include "router/service.h"
#include "rpc/poller.h"

namespace flotilla::router {

struct GrpcOptions {
  // A name or an address; "0.0.0.0" and "::" are all addresses of the machine.
  std::string host = "127.0.0.1";
  std::uint16_t port = 50051;  // 0: any free one
  // The metadata key that names the tenant, for a gateway that sets it itself;
  // empty: there is one tenant.
  std::string tenant_metadata;
  // Admits callers, which are then the tenants, to everything but health, which needs no key.
  // Null: everybody is admitted. Outlives the server.
  KeyGate* gate = nullptr;
  // The certificate of the port; null: it is not encrypted. Outlives the server.
  TlsFiles* tls = nullptr;
  // A larger request is refused with RESOURCE_EXHAUSTED before it is parsed. The bound is a
  // little above RequestLimits::max_prompt_bytes.
  int max_request_bytes = 5 << 20;
  // The most calls of one connection at a time. A client holds further calls back.
  int max_concurrent_streams = 1024;
  // For one call: the unread output above which the client counts as stalled, and how long
  // it may be stalled before it is cut off. Generation never waits for a client.
  std::size_t stream_buffer_bytes = 64 << 10;
  absl::Duration stall_timeout = absl::Seconds(30);
  // What all such calls together may hold. Beyond it, the one that holds most is cut off, of those
  // whose clients have taken nothing for `patience`.
  std::size_t unread_bytes = 32u << 20;
  absl::Duration patience = absl::Seconds(1);
  std::shared_ptr<rpc::Poller> poller;  // receives the calls; null: one of its own
};

class GrpcServer {
 public:
  // Serves when it returns. `service` outlives the server. UNAVAILABLE: the
  // address cannot be listened on (taken, not of this machine).
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(GrpcOptions options,
                                                           InferenceService* service);
  // Stops without grace, unless stopped.
  virtual ~GrpcServer() = default;

  virtual std::uint16_t port() const = 0;
  // host:port, as a client connects to it.
  virtual std::string address() const = 0;

  // Takes no new calls, lets running ones end for `grace` and cancels the rest.
  // Blocks until all have ended. Not called from a callback of the service. Idempotent.
  virtual void Stop(absl::Duration grace) = 0;
};

}  // namespace flotilla::router
