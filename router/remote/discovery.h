// Discovery: a thread that resolves the names of schedulers every few seconds and publishes
// the fleet which addresses there are. With fixed addresses only there is no thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/core/known_addresses.h"

namespace flotilla {

struct DiscoveryOptions {
  // host:port, or dns:///host:port.
  std::vector<std::string> targets;
  // Between two looks at a name.
  absl::Duration interval = absl::Seconds(5);
  // The addresses, host:port, of a name. May block. Default: getaddrinfo.
  std::function<absl::StatusOr<std::vector<std::string>>(const DnsName&)> resolve;
  // Receives all addresses, sorted: before Start returns if some are fixed, and when they have
  // changed. Not the fleet's own threads.
  std::function<void(const std::vector<std::string>&)> on_addresses;
  // Learns that a name could not be resolved: once, until it can be again. May be null.
  std::function<void(const DnsName&, const absl::Status&)> on_failure;
};

class Discovery {
 public:
  // INVALID_ARGUMENT: a target that is no address.
  static absl::StatusOr<std::unique_ptr<Discovery>> Start(DiscoveryOptions options);
  // Waits for a look that is under way: seconds, where no name server answers.
  ~Discovery();
  Discovery(const Discovery&) = delete;
  Discovery& operator=(const Discovery&) = delete;

 private:
  Discovery(DiscoveryOptions options, KnownAddresses known);
  void Loop() ABSL_LOCKS_EXCLUDED(mu_);
  void Look();
  void Publish();

  const DiscoveryOptions options_;
  // Only the thread uses these once it runs.
  KnownAddresses known_;
  std::vector<std::string> published_;
  std::vector<bool> failing_;  // of known_.names()

  absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace flotilla
