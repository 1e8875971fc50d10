// EngineServer: an Engine for routers in other processes, as flotilla.v1.Scheduler.
//
// A router's stream is the lease of its requests: when it ends they are cancelled.
// A router may then submit them again on a new stream, also here.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rt/clock.h"
#include "common/types/engine.h"
#include "rpc/endpoint.h"

namespace flotilla {

struct EngineServerOptions {
  rpc::ListenOptions listen;
  // How often routers learn of a load that has changed when nothing else is to say.
  absl::Duration load_interval = absl::Milliseconds(100);
};

class EngineServer {
 public:
  // Serves when it returns. `engine` and `clock` outlive it, but the engine has stopped
  // before it goes. UNAVAILABLE: the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<EngineServer>> Start(const EngineServerOptions& options,
                                                             Engine* engine, const Clock* clock);
  // Stops, unless stopped.
  virtual ~EngineServer() = default;

  virtual std::uint16_t port() const = 0;
  // Ends all streams. Idempotent.
  virtual void Stop() = 0;
};

}  // namespace flotilla
