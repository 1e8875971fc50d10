// The routes of the HTTP API. The handler maps paths to functions and answers simple requests
// itself; OpenAiExchange answers generations. There is one handler per I/O thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "router/http/cors_policy.h"
#include "router/http/exchange.h"
#include "router/http/host_policy.h"
#include "router/key_gate.h"
#include "router/service.h"

namespace flotilla::router {

class FilesMetrics;
class FilesService;

struct ApiOptions {
  bool permissive = false;
  std::size_t max_prompts = 32;
  std::function<std::string()> metrics;  // may be empty
  RouterMetrics* refusals = nullptr;     // may be null
  KeyGate* gate = nullptr;               // null: everybody is admitted
  bool admin = false;  // without a gate: the routes of admins exist, for everybody
  HostPolicy hosts = HostPolicy("", {});
  CorsPolicy pages;
  bool health_only = false;               // true: only /health, /ready and /metrics exist
  FilesService* files = nullptr;          // null: no files are kept
  FilesMetrics* files_metrics = nullptr;  // with `files`
  Dispatcher* dispatcher = nullptr;       // with `files`: that of the I/O loop
};

// `service` and `io_loop` outlive the handler, which lives on the I/O loop's thread.
std::unique_ptr<HttpHandler> MakeApiHandler(ApiOptions options, InferenceService* service,
                                            IoLoop* io_loop);

}  // namespace flotilla::router
