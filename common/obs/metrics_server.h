// MetricsServer: /metrics of a process without an HTTP frontend, for Prometheus.
//
// One thread reads and answers requests. The number of connections, the size of headers and the
// time that a client takes are bounded. A connection above the bound replaces a connection that is
// silent. (prometheus-cpp's Exposer cannot be used. Its threads have stacks of 100 KB, thread-local
// memory included. A page of metrics nearly fills such a stack, and an error page overflows it.)
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/obs/metrics.h"

namespace flotilla {

class MetricsServer {
 public:
  // Serves `metrics`, which outlives it, until it is destroyed. `address`: host:port; 0
  // is any free port. UNAVAILABLE: the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address,
                                                              Metrics* metrics);
  virtual ~MetricsServer() = default;

  virtual std::uint16_t port() const = 0;
};

}  // namespace flotilla
