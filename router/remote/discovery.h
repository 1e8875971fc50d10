// Discovery: a thread that resolves the names of schedulers every few seconds and publishes
// the addresses to the fleet. If all addresses are fixed, there is no thread.
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

namespace flotilla::router {

struct DiscoveryOptions {
  // host:port, or dns:///host:port.
  std::vector<std::string> targets;
  // The time between two look-ups of a name.
  absl::Duration interval = absl::Seconds(5);
  // Returns the addresses, host:port, of a name. May block. Default: getaddrinfo.
  std::function<absl::StatusOr<std::vector<std::string>>(const DnsName&)> resolve;
  // Receives all addresses, sorted: before Start returns if some are fixed, and when they have
  // changed. It is not called on the fleet's own threads.
  std::function<void(const std::vector<std::string>&)> on_addresses;
  // Called when a name could not be resolved: once, until it can be resolved again. May be null.
  std::function<void(const DnsName&, const absl::Status&)> on_failure;
};

class Discovery {
 public:
  // INVALID_ARGUMENT: a target is not an address.
  static absl::StatusOr<std::unique_ptr<Discovery>> Start(DiscoveryOptions options);
  // Waits for a look-up that is under way. This takes seconds if no name server answers.
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

}  // namespace flotilla::router
