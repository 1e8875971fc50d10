// HttpServer: the OpenAI HTTP API on a port. Owned by main, which calls Start and Stop on its
// thread. The server has its own I/O threads, each with an IoLoop of the service.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/auth/tls_files.h"
#include "router/http/cors_policy.h"
#include "router/key_gate.h"
#include "router/service.h"

namespace flotilla::router {

class FilesMetrics;
class FilesService;

// Bounds of one connection, and of the time that a peer may take.
struct HttpLimits {
  std::size_t header_bytes = 8192;      // request line and headers: else 431
  std::size_t header_fields = 100;      // each takes memory besides its bytes: else 431
  std::size_t framing_bytes = 8192;     // a chunk's line before its data, or a trailer: else 400
  std::size_t body_bytes = 4u << 20;    // else 413
  std::size_t pipelined_bytes = 16384;  // read ahead while a request is served
  // Unsent output; a peer that stays above it for `write_timeout` is cut off and
  // its request cancelled. Generation never waits for a peer.
  std::size_t unsent_bytes = 1u << 20;
  // The kernel's send buffer. By default it grows to megabytes before a slow peer is noticed.
  // Tokens are small; this size is enough for 1 MB/s over 100 ms.
  int socket_send_bytes = 128 << 10;
  absl::Duration idle_timeout = absl::Seconds(60);    // between requests
  absl::Duration header_timeout = absl::Seconds(10);  // first byte to last header; TLS handshake
  absl::Duration body_timeout = absl::Seconds(30);
  absl::Duration write_timeout = absl::Seconds(30);
  // A body that takes longer may be cut off in favour of others when the memory for bodies is
  // used up, or when there are as many connections as allowed.
  absl::Duration slow_body = absl::Seconds(1);
  // A connection that has been idle, or in a request's head, for longer may be cut off when there
  // are as many as allowed. Who has just connected is about to send, and would not learn why.
  absl::Duration fresh = absl::Milliseconds(250);
  // A peer that has not taken all output for so long, and takes it more slowly than at this rate,
  // may be cut off in favour of others when the memory for answers is used up.
  absl::Duration slow_output = absl::Seconds(1);
  double slow_output_bytes_per_second = 1 << 20;
  // The time from when a peer has closed its sending side until an interim answer probes
  // whether it is still there. The next delay is ten times as long, and so on.
  absl::Duration probe_delay = absl::Milliseconds(250);
};

struct HttpServerOptions {
  std::string address = "127.0.0.1";  // an IP address, not a name
  std::uint16_t port = 8080;          // 0: any free one
  std::uint32_t io_threads = 1;
  // At this bound a new connection takes the place of the one that has been idle for longest,
  // or else of one that is slow with its request (HttpLimits::fresh, slow_body). If there is none,
  // the new one gets 503 and is closed. With TLS, those whose handshake is not over give way first,
  // and there is no 503.
  std::uint32_t max_connections = 1024;
  // Memory for bodies that are being read, over all connections, beyond the first 8 KiB of
  // each. If it is spent, slow bodies are cut off; if that is not enough, the request gets 503.
  std::size_t body_memory_bytes = 32u << 20;
  // Memory for answers that are not sent yet, over all connections. Beyond it, peers that take
  // their answers slowly are cut off, the one that holds most first, and their requests cancelled.
  std::size_t output_memory_bytes = 32u << 20;
  // Descriptors that are kept open as a reserve. They are closed to take connections when the
  // process has no others left.
  std::size_t spare_descriptors = 0;
  // The certificate of the port; null: it is not encrypted. Outlives the server.
  TlsFiles* tls = nullptr;
  // Called after each TLS handshake; false: it failed. May be null. Called on any I/O thread.
  std::function<void(bool done)> on_handshake;
  // Host headers that are answered besides those of loopback (router/http/host_policy.h).
  std::vector<std::string> allowed_hosts;
  // The web pages that may read answers.
  CorsPolicy pages;
  // Serves only routes that need no key: /health, /ready and /metrics.
  bool health_only = false;
  HttpLimits limits;
  // The request header that names the tenant, for a gateway that sets it itself;
  // empty: there is one tenant.
  std::string tenant_header;
  // Admits callers, which are then the tenants; null: everybody. Outlives the server.
  KeyGate* gate = nullptr;
  // Without a gate: the routes of admins exist, for everybody who reaches the server.
  bool admin = false;
  // Unknown body fields are ignored, with a warning header, not refused.
  bool permissive = false;
  std::size_t max_prompts = 32;  // of one completions request
  // Keeps the files and batches of clients; null: nothing does. Outlives the server, and so do the
  // metrics, which it has.
  FilesService* files = nullptr;
  FilesMetrics* files_metrics = nullptr;
  // Returns the text of /metrics; without it there is no such page. Called on any I/O thread.
  std::function<std::string()> metrics;
  // Counts bodies that are refused before the service sees them. May be null,
  // else outlives the server.
  RouterMetrics* refusals = nullptr;
};

class HttpServer {
 public:
  // `service` outlives the server.
  static std::unique_ptr<HttpServer> Create(HttpServerOptions options, InferenceService* service);
  // Stops without grace.
  virtual ~HttpServer() = default;

  // Listens and serves; returns the port. Called once. INVALID_ARGUMENT: the address is not
  // valid. UNAVAILABLE: it cannot be bound; the message has the reason.
  virtual absl::StatusOr<std::uint16_t> Start() = 0;

  // Accepts nothing new, lets running requests finish for `grace`, cancels the
  // rest, and joins all threads. Idempotent.
  virtual void Stop(absl::Duration grace) = 0;
};

}  // namespace flotilla::router
