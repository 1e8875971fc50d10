// HttpExchange: one streamed request to a server, on a connection of its own.
//
// The thread that runs the io_context calls it and is called back. Each request has a new
// connection, so that its TTFT has the cost of one.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <chrono>
#include <memory>
#include <string>

#include "loadtest/core/load_recorder.h"
#include "loadtest/server_target.h"

namespace flotilla::loadtest {

// What all exchanges of a test have in common. It outlives them.
struct HttpSettings {
  ServerTarget target;
  // The addresses of the target's host. Names are resolved once, before the test.
  boost::asio::ip::tcp::resolver::results_type addresses;
  boost::asio::ssl::context* tls = nullptr;  // with https only
  std::string route;                         // such as /v1/chat/completions
  std::string api_key;                       // "": none
  // From the start to the end of the answer.
  std::chrono::nanoseconds timeout{};
};

// Who made an exchange. Calls come from the handlers of the io_context.
class ExchangeListener {
 public:
  virtual ~ExchangeListener() = default;
  // An event of the answer that has text.
  virtual void OnText(const std::string& text) = 0;
  // The answer is complete. No call follows.
  virtual void OnFinished(const RequestUsage& usage) = 0;
  // The request failed; `reason` is short and may have a printable code of the server in it:
  //   connection refused, cannot connect: ..., timeout, connection cut, bad HTTP: ..., bad stream,
  //   HTTP 503 CODE, error in the stream: CODE, TLS: ...
  // No call follows.
  virtual void OnFailed(const std::string& reason) = 0;
};

class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  // Ends the exchange. No call follows.
  virtual void Cancel() = 0;
};

// Sends `body`. The listener outlives the exchange, or cancels it. The first call comes later, from
// a handler.
std::shared_ptr<HttpExchange> StartHttpExchange(boost::asio::io_context& io,
                                                const HttpSettings& settings, std::string body,
                                                ExchangeListener* listener);

}  // namespace flotilla::loadtest
