#include "common/obs/metrics_server.h"

#include <prometheus/exposer.h>

#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace flotilla {
namespace {

class MetricsServerImpl final : public MetricsServer {
 public:
  // Throws where the library does.
  MetricsServerImpl(const std::string& address, Metrics* metrics)
      : collectable_(metrics->AsCollectable()), exposer_(address, /*num_threads=*/1) {
    exposer_.RegisterCollectable(collectable_);
  }

  std::uint16_t port() const override {
    return static_cast<std::uint16_t>(exposer_.GetListeningPorts().at(0));
  }

 private:
  const std::shared_ptr<prometheus::Collectable> collectable_;
  prometheus::Exposer exposer_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    Metrics* metrics) {
  try {
    return std::make_unique<MetricsServerImpl>(address, metrics);
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", address, " for metrics: ", error.what()));
  }
}

}  // namespace flotilla
