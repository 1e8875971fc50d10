#include "router/tls_metrics.h"

#include "absl/time/time.h"

namespace flotilla::router {
namespace {

Counter& Handshakes(Metrics& metrics, const char* result) {
  return metrics.AddCounter("flotilla_router_tls_handshakes_total",
                            "TLS handshakes of HTTP connections.", {{"result", result}});
}

Counter& Reads(Metrics& metrics, const char* result) {
  return metrics.AddCounter("flotilla_router_tls_certificate_reads_total",
                            "Changed certificates of the public ports, and whether they are used.",
                            {{"result", result}});
}

}  // namespace

TlsMetrics::TlsMetrics(Metrics& metrics, TlsFiles* files)
    : done_(Handshakes(metrics, "done")), failed_(Handshakes(metrics, "failed")) {
  Counter& taken = Reads(metrics, "taken");
  Counter& refused = Reads(metrics, "refused");
  Gauge& expiry =
      metrics.AddGauge("flotilla_router_tls_certificate_expiry_timestamp_seconds",
                       "When the certificate of the public ports ends; 0: they are not encrypted.");
  if (files == nullptr) return;
  metrics.OnRender([files, &taken, &refused, &expiry] {
    expiry.Set(static_cast<double>(absl::ToUnixSeconds(files->Get()->expiry)));
    const TlsFiles::Counts counts = files->CountReads();
    RaiseTo(taken, static_cast<double>(counts.taken));
    RaiseTo(refused, static_cast<double>(counts.refused));
  });
}

}  // namespace flotilla::router
