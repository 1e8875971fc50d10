// HostServer: the gRPC endpoint of a host that lends itself to worker groups,
// flotilla.v1.Host.
//
// A caller can make this host run any program, just as an agent can on its own host,
// because a daemon of Open MPI runs what its mpirun says. So only members of the fleet may
// call it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/obs/log.h"
#include "rpc/endpoint.h"

namespace flotilla::worker {

struct HostServerOptions {
  rpc::ListenOptions listen;
  std::string program = "orted";
};

class HostServer {
 public:
  // The server serves once Start returns. UNAVAILABLE: it cannot listen on the address.
  // `log` outlives the server.
  static absl::StatusOr<std::unique_ptr<HostServer>> Start(HostServerOptions options, Logger* log);
  // Stops the server, unless it is stopped.
  virtual ~HostServer() = default;

  virtual std::uint16_t port() const = 0;
  // Ends all daemons. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace flotilla::worker
