// One HTTP request and its answer: the interface between the connection, which knows bytes
// and sockets, and the handlers, which know the API. All of it runs on the connection's I/O
// thread.
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

namespace flotilla::router {

// The part of a request that is known before its body is read.
struct HttpHead {
  std::string_view method;
  std::string_view path;           // without the query
  std::string_view host;           // the Host header; empty: there is none
  std::string_view authorization;  // empty: there is none, or several
  std::string_view content_type;   // the same
  std::string_view tenant;         // as the tenant header says
  bool from_page = false;          // a page in a browser asks: there is an Origin header
  std::string_view origin;         // its value; empty: there is none, or several
  // An OPTIONS that asks whether a page may send a request: it has Access-Control-Request-Method.
  bool asks_for_page = false;
  bool has_body = false;  // the head announces bytes of a body
};

class HttpUpload;

struct HttpRequest {
  std::string method;
  std::string path;                 // without the query
  std::string query;                // behind the path's ?; at most a head's bytes
  std::string request_id;           // the client's X-Request-Id if printable, else made up
  bool client_named = false;        // the client sent it
  std::string tenant;               // as the key or the tenant header says
  std::int64_t max_priority = 100;  // as the key says
  bool background = false;          // nobody waits for it: it is a line of a batch
  bool is_line = false;             // of a file, see ApiRequest
  bool preflight = false;           // as HttpAdmission says
  TraceContext trace;               // of a valid traceparent; else all zero
  std::chrono::steady_clock::time_point came;  // when it was whole
  std::string body;                            // with an upload, its last piece
  MemoryCharge charge;  // the body's part of the budget for bodies, held until this is destroyed
  std::unique_ptr<HttpUpload> upload;  // of HttpAdmission
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// An answer that ends the connection, because the body that follows is not read.
struct HttpRefusal {
  int status = 400;
  std::string body;  // JSON
  HttpHeaders headers;
};

struct HttpAdmission {
  std::optional<KeyOwner> caller;  // the key's owner; none: callers have no names
  std::optional<HttpRefusal> refusal;
  HttpHeaders headers;     // of the answer, whatever it is
  bool preflight = false;  // a browser asks for a page that may read answers
  // Takes the body in pieces while it comes; null: the body is taken as a whole.
  std::unique_ptr<HttpUpload> upload;
};

// The answer being written. Either Send once, or Begin, any number of Write, and
// End. Calls after the peer has gone do nothing.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  // The answer to HEAD has the body's length, but not the body.
  virtual void Send(int status, std::string_view content_type, std::string body,
                    const HttpHeaders& headers) = 0;
  virtual void Begin(int status, std::string_view content_type, const HttpHeaders& headers) = 0;
  // Queues the text. All text that one turn of the I/O thread writes is sent as one chunk.
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
  // True: of a long answer, the exchange writes each piece only once OnSent was called. So output
  // that waits, waits for the peer, who is cut off if it takes none for long.
  virtual bool paced() const { return false; }
  // All that was written of the answer, which has begun and has not ended, was sent.
  virtual void OnSent() {}
};

// The sender of a body that comes in pieces: the connection. All calls on its I/O thread; those
// that come late do nothing.
class HttpBodySource {
 public:
  virtual ~HttpBodySource() = default;
  // The next piece may come.
  virtual void ResumeBody() = 0;
  // The rest of the body is not read. Answers with the refusal and closes.
  virtual void RefuseBody(HttpRefusal refusal) = 0;
};

// A body that need not fit into memory. The connection passes one piece at a time, and destroys the
// upload if the peer goes.
class HttpUpload : public HttpExchange {
 public:
  // The most bytes of the body; more are refused with 413.
  virtual std::uint64_t max_bytes() const = 0;
  // Takes the next bytes. False: no more come until it calls source.ResumeBody, later. `source`
  // outlives the upload.
  virtual bool Take(std::string piece, HttpBodySource& source) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called before a body is read. Returns the caller, or the refusal. A request without a body
  // is not refused for its method or path: Handle answers it, and the connection stays open.
  virtual HttpAdmission Admit(const HttpHead& head) = 0;
  // Answers through `reply`, now or later. The exchange returned owns what must live until
  // then (null when it was answered at once). `reply` outlives the exchange. Work that is not
  // owned by the exchange holds a weak pointer.
  virtual std::unique_ptr<HttpExchange> Handle(HttpRequest request, HttpReply& reply) = 0;
};

}  // namespace flotilla::router
