#include "rpc/metrics.h"

#include <optional>

#include "absl/time/time.h"

namespace flotilla::rpc {

void WatchCertificate(Metrics& metrics, const Credentials* credentials) {
  Gauge& expiry = metrics.AddGauge(
      "flotilla_tls_certificate_expiry_timestamp_seconds",
      "When the certificate of the fleet's streams ends; 0: they are not encrypted.");
  metrics.OnRender([credentials, &expiry] {
    const std::optional<absl::Time> end = credentials->CertificateExpiry();
    expiry.Set(end.has_value() ? static_cast<double>(absl::ToUnixSeconds(*end)) : 0);
  });
}

}  // namespace flotilla::rpc
