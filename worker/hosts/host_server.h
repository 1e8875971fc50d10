// HostServer: the gRPC endpoint of a host that lends itself to worker groups,
// flotilla.v1.Host.
//
// Who may call it can have this host run anything, as agents can on theirs: a daemon of
// Open MPI runs what its mpirun says. So only members of the fleet may.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/obs/log.h"
#include "rpc/endpoint.h"

namespace flotilla {

struct HostServerOptions {
  rpc::ListenOptions listen;
  std::string program = "orted";
};

class HostServer {
 public:
  // Serves when it returns. UNAVAILABLE: the address cannot be listened on. `log` outlives it.
  static absl::StatusOr<std::unique_ptr<HostServer>> Start(HostServerOptions options, Logger* log);
  // Stops, unless stopped.
  virtual ~HostServer() = default;

  virtual std::uint16_t port() const = 0;
  // Ends all daemons. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace flotilla
