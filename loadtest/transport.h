// Transport: how the requests of a load test reach a server. The runner has one, and makes an
// exchange of it for each request. HTTP and gRPC implement it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "loadtest/core/load_recorder.h"

namespace flotilla::loadtest {

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
  //   HTTP 503 CODE, error in the stream: CODE, TLS: ..., gRPC UNAVAILABLE CODE
  // No call follows.
  virtual void OnFailed(const std::string& reason) = 0;
};

// A request under way. The thread of the io_context uses it.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // Ends the exchange. No call follows.
  virtual void Cancel() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  // Called before the test, again before each further one. Errors: the server has no address, or
  // the options cannot be used.
  virtual absl::Status Prepare(boost::asio::io_context& io) = 0;
  // Sends a request for `max_tokens` tokens. `said` is what was said so far, by the user first and
  // then in turns. The listener outlives the exchange, or cancels it. Its first call comes later,
  // from a handler of `io`.
  virtual std::shared_ptr<Exchange> Start(boost::asio::io_context& io,
                                          const std::vector<std::string>& said,
                                          std::uint32_t max_tokens, ExchangeListener* listener) = 0;
  // Returns when no exchange, ended or cancelled, will use `io` any more.
  virtual void Drain() {}
};

// What a server calls an error, as far as it is letters, digits and a few signs: a server may say
// anything. At most 48 letters.
std::string PlainCode(const std::string& code);

}  // namespace flotilla::loadtest
