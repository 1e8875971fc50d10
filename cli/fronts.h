// Fronts: the router's half of a process, from text to an engine: templates and
// tokenizer, the inference service, and its HTTP and gRPC servers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/flags.h"
#include "common/obs/log.h"
#include "common/obs/metrics.h"
#include "common/rt/clock.h"
#include "common/types/engine.h"
#include "model/gguf.h"
#include "router/probe.h"

namespace flotilla {

class Fronts {
 public:
  struct Parts {
    Engine* engine = nullptr;
    Metrics* metrics = nullptr;  // what /metrics shows
    RouterProbe* probe = nullptr;
    const Clock* clock = nullptr;
    Logger* log = nullptr;
  };

  // Serves when it returns. All parts outlive it; `file` has the model's tokenizer and
  // is not needed any more. Errors: a tokenizer that cannot be used, an address that
  // cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Fronts>> Start(const RoleFlags& flags,
                                                       const std::string& model_id,
                                                       const GgufFile& file, const Parts& parts);
  virtual ~Fronts() = default;

  virtual std::uint16_t http_port() const = 0;
  virtual std::uint16_t grpc_port() const = 0;
  virtual std::string grpc_address() const = 0;
  // Ends connections once they have sent their last bytes, for `grace` at most.
  virtual void Stop(absl::Duration grace) = 0;
};

// How to use what is served, for a person: addresses, and a command to try.
std::string UsageText(const RoleFlags& flags, const std::string& model_id, const Fronts& fronts);

}  // namespace flotilla
