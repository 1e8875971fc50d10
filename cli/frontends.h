// Frontends: the router's half of a process, which stands between clients and engines. It
// has chat templates and tokenizers, the inference service, and the HTTP and gRPC servers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/flags.h"
#include "common/obs/log.h"
#include "common/obs/metrics.h"
#include "common/rt/clock.h"
#include "common/types/engine.h"
#include "common/types/tokenizer_bundle.h"
#include "router/metrics.h"
#include "router/service.h"
#include "rpc/poller.h"

namespace flotilla::cli {

class Frontends {
 public:
  struct Parts {
    Metrics* metrics = nullptr;                // what /metrics shows
    router::RouterMetrics* unknown = nullptr;  // for requests that name no model
    const Clock* clock = nullptr;
    Logger* log = nullptr;
    std::shared_ptr<rpc::Poller> poller;  // null: gRPC gets one of its own
  };

  // All parts outlive the object. Nothing is served yet.
  static std::unique_ptr<Frontends> Create(const RoleFlags& flags, const Parts& parts);
  virtual ~Frontends() = default;

  // Serves one more model from now on, as `model_id`. May be called at any time. `tokenizer`
  // is not needed after the call; `engine` and `metrics` outlive this object.
  // Errors: the tokenizer cannot be used.
  virtual absl::Status AddModel(const std::string& model_id, const TokenizerBundle& tokenizer,
                                Engine* engine, router::RouterMetrics* metrics) = 0;
  // Serves requests of this process once there is a model. Lives as long as this object.
  virtual router::InferenceService& service() = 0;
  // When it returns, requests are served. Called once. Errors: the process cannot listen on an
  // address.
  virtual absl::Status Listen() = 0;

  virtual std::uint16_t http_port() const = 0;
  virtual std::optional<std::uint16_t> health_port() const = 0;  // none: without --health-port
  virtual std::uint16_t grpc_port() const = 0;
  virtual std::string grpc_address() const = 0;
  // Drops the requests of batches that are in flight, before requests are drained. A later process
  // computes them.
  virtual void StopBatches() = 0;
  // Ends connections once they have sent their last bytes, for `grace` at most.
  virtual void Stop(absl::Duration grace) = 0;
};

// The number of threads that encode prompts, in a process that may run on so many CPUs. One
// thread encodes about a million tokens a second, more than any machine prefills. There are
// several so that short inputs do not wait for long ones (FairQueue). Three are enough for that;
// there are up to eight if CPUs are to spare, because the threads that compute need CPUs.
std::uint32_t TokenizerThreads(int cpus);

// Writes the ready file and the line `ready http=HOST:PORT grpc=HOST:PORT`, with
// ` health=HOST:PORT` if there is such a port.
absl::Status AnnounceFrontends(const RoleFlags& flags, const Frontends& frontends);

// Tells a person how to use the server: the addresses, and a command to try.
std::string UsageText(const RoleFlags& flags, const std::string& model_id,
                      const Frontends& frontends);

}  // namespace flotilla::cli
