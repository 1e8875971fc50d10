// One HTTP request and its answer, between the connection, which knows bytes and
// sockets, and the handlers, which know what is asked. All of it on the
// connection's I/O thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/types/request.h"
#include "router/api_keys.h"
#include "router/http/memory_budget.h"

namespace flotilla {

// What is known of a request before its body is read.
struct HttpHead {
  std::string_view method;
  std::string_view path;           // without the query
  std::string_view host;           // the Host header; empty: there is none
  std::string_view authorization;  // empty: there is none, or several
  std::string_view content_type;   // the same
  bool from_page = false;          // a browser says which page asks: there is an Origin
  bool has_body = false;           // bytes of one are announced
};

struct HttpRequest {
  std::string method;
  std::string path;                 // without the query
  std::string request_id;           // the client's X-Request-Id if printable, else made up
  bool client_named = false;        // the client sent it
  std::string tenant;               // as the key or the tenant header says
  std::int64_t max_priority = 100;  // as the key says
  TraceContext trace;               // of a valid traceparent; else all zero
  std::chrono::steady_clock::time_point came;  // when it was whole
  std::string body;
  MemoryCharge charge;  // what the body holds of the budget for bodies, until this goes
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// An answer that ends the connection, since the body that follows is not read.
struct HttpRefusal {
  int status = 400;
  std::string body;  // JSON
  HttpHeaders headers;
};

struct HttpAdmission {
  std::optional<KeyOwner> caller;  // whose key it is; none: callers have no names
  std::optional<HttpRefusal> refusal;
};

// The answer being written. Either Send once, or Begin, any number of Write, and
// End. Calls after the peer has gone do nothing.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  // To HEAD the body is not sent, but its length.
  virtual void Send(int status, std::string_view content_type, std::string body,
                    const HttpHeaders& headers) = 0;
  virtual void Begin(int status, std::string_view content_type, const HttpHeaders& headers) = 0;
  // Queued; what one turn of the I/O thread writes leaves as one chunk.
  virtual void Write(std::string_view text) = 0;

  virtual void End() = 0;
  // Memory has run out: answers 503, or closes the connection if an answer has begun.
  virtual void Fail() = 0;
};

// A request that is being answered. Destroyed by the connection soon after the
// answer is complete, or when the peer has gone: work still running is
// cancelled by the destructor.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Before a body is read: who asks, or why it is refused. No request without a body is
  // refused for its method or path: Handle answers that, and the connection stays.
  virtual HttpAdmission Admit(const HttpHead& head) = 0;
  // Answers through `reply`, now or later; what must live until then is the
  // exchange returned (null when it was answered at once). `reply` outlives the
  // exchange. Work that is not owned by the exchange holds a weak pointer.
  virtual std::unique_ptr<HttpExchange> Handle(HttpRequest request, HttpReply& reply) = 0;
};

}  // namespace flotilla
