// TlsMetrics: the metrics of the certificate of the public ports. docs/api.md lists them.
//
// Main owns one, also if the ports are not encrypted. Any thread may call it; it does not block.
#pragma once

#include "common/auth/tls_files.h"
#include "common/obs/metrics.h"

namespace flotilla::router {

class TlsMetrics {
 public:
  // `files` (null: the ports are not encrypted) and `metrics` outlive the object, and `files` the
  // last Render. A Render looks at the files.
  TlsMetrics(Metrics& metrics, TlsFiles* files);

  // A handshake of an HTTP connection is over.
  void OnHandshake(bool done) { (done ? done_ : failed_).Increment(); }

 private:
  Counter& done_;
  Counter& failed_;
};

}  // namespace flotilla::router
