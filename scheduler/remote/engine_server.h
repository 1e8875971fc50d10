// EngineServer: serves an Engine to routers in other processes, as flotilla.v1.Scheduler.
//
// When a router's stream ends, the requests of that stream are cancelled. The router may
// then submit them again on a new stream, to this server or to another.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rt/clock.h"
#include "common/types/engine.h"
#include "rpc/endpoint.h"

namespace flotilla::scheduler {

struct EngineServerOptions {
  rpc::ListenOptions listen;
  // How often a load that has changed is sent to routers when nothing else is sent.
  absl::Duration load_interval = absl::Milliseconds(100);
};

class EngineServer {
 public:
  // The server serves when this returns. `engine` and `clock` outlive the server, but the
  // engine must be stopped before the server is destroyed. UNAVAILABLE: the server cannot
  // listen on the address.
  static absl::StatusOr<std::unique_ptr<EngineServer>> Start(const EngineServerOptions& options,
                                                             Engine* engine, const Clock* clock);
  // Stops the server if it still runs.
  virtual ~EngineServer() = default;

  virtual std::uint16_t port() const = 0;
  // Ends all streams. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace flotilla::scheduler
