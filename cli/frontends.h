// Frontends: the router's half of a process, from text to engines: templates and
// tokenizers, the inference service, and its HTTP and gRPC servers.
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
#include "model/gguf.h"
#include "router/probe.h"
#include "rpc/poller.h"

namespace flotilla {

class Frontends {
 public:
  struct Parts {
    Metrics* metrics = nullptr;    // what /metrics shows
    RouterProbe* probe = nullptr;  // of requests that name no model
    const Clock* clock = nullptr;
    Logger* log = nullptr;
    std::shared_ptr<rpc::Poller> poller;  // null: gRPC gets one of its own
  };

  // All parts outlive it. Nothing is served yet.
  static std::unique_ptr<Frontends> Create(const RoleFlags& flags, const Parts& parts);
  virtual ~Frontends() = default;

  // Serves one more model from now on, as `model_id`; any time. `file` has its tokenizer
  // and is not needed any more; `engine` and `probe` outlive it. Errors: a tokenizer that
  // cannot be used.
  virtual absl::Status AddModel(const std::string& model_id, const GgufFile& file, Engine* engine,
                                RouterProbe* probe) = 0;
  // Serves when it returns; once. Errors: an address that cannot be listened on.
  virtual absl::Status Listen() = 0;

  virtual std::uint16_t http_port() const = 0;
  virtual std::optional<std::uint16_t> health_port() const = 0;  // none: without --health-port
  virtual std::uint16_t grpc_port() const = 0;
  virtual std::string grpc_address() const = 0;
  // Ends connections once they have sent their last bytes, for `grace` at most.
  virtual void Stop(absl::Duration grace) = 0;
};

// Threads that encode prompts, of a process that may run on so many CPUs. One encodes a million
// tokens a second or so, which no machine prefills: there are several so that short inputs do
// not wait for long ones (FairQueue), of which three make that so, and up to eight where there
// are CPUs to spare, since those that compute need theirs.
std::uint32_t TokenizerThreads(int cpus);

// Writes the ready file and the line `ready http=HOST:PORT grpc=HOST:PORT`, with
// ` health=HOST:PORT` where there is such a port.
absl::Status AnnounceFrontends(const RoleFlags& flags, const Frontends& frontends);

// How to use what is served, for a person: addresses, and a command to try.
std::string UsageText(const RoleFlags& flags, const std::string& model_id,
                      const Frontends& frontends);

}  // namespace flotilla
