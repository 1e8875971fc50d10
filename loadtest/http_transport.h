// HttpTransport: requests to an API like OpenAI's. By default each has a connection of its own, so
// that its TTFT has the cost of one. With `keep_alive` a connection serves one request after the
// other.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "loadtest/request_body.h"
#include "loadtest/server_target.h"
#include "loadtest/transport.h"

namespace flotilla::loadtest {

struct ServerOptions {
  ServerTarget target;
  RequestShape shape;
  std::string api_key;  // "": none
  std::string ca_file;  // of certificates that TLS trusts besides the system's; "": none
  bool verify_tls = true;
  bool keep_alive = false;  // HTTP only: gRPC has one connection for all requests
  // From the time that a request is sent to the end of its answer.
  std::int64_t timeout_ns = 600'000'000'000;
};

// Prepare returns UNAVAILABLE if the host has no address, and INVALID_ARGUMENT if the shape or the
// certificates cannot be used.
std::unique_ptr<Transport> MakeHttpTransport(const ServerOptions& options);

}  // namespace flotilla::loadtest
