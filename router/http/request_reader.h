// RequestReader: reads one HTTP/1.1 request from the bytes of a connection: first its head,
// then its body. Its memory is bounded in each of its states, and a budget bounds the bodies of
// all connections together. It knows no socket and lives on its connection's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>

#include "router/http/exchange.h"
#include "router/http/head_scanner.h"
#include "router/http/memory_budget.h"
#include "router/http/server.h"

namespace flotilla::router {

// A request's body, whose memory grows with the bytes that have come. Bytes that are only
// announced take none. (The library's string_body reserves what Content-Length says.)
struct GrowingBody {
  using value_type = std::string;

  class reader {
   public:
    template <bool is_request, class Fields>
    reader(boost::beast::http::header<is_request, Fields>&, value_type& body) : body_(body) {}
    template <class Length>
    void init(const Length&, boost::system::error_code& error) {
      error = {};
    }
    template <class Buffers>
    std::size_t put(const Buffers& buffers, boost::system::error_code& error) {
      error = {};
      std::size_t bytes = 0;
      for (auto at = boost::asio::buffer_sequence_begin(buffers);
           at != boost::asio::buffer_sequence_end(buffers); ++at) {
        const boost::asio::const_buffer part = *at;
        body_.append(static_cast<const char*>(part.data()), part.size());
        bytes += part.size();
      }
      return bytes;
    }
    void finish(boost::system::error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

class RequestReader {
 public:
  using Head = boost::beast::http::request<GrowingBody>;
  enum class Step : std::uint8_t {
    kMore,      // more input is needed; any input that is left is an incomplete part
    kHead,      // the head is there; returned once
    kNoMemory,  // the budget is spent; may be tried again
    kRequest,   // the request is whole
    kRefused,   // refusal() says why; where the next request begins is unknown
  };

  // Both outlive it.
  RequestReader(const HttpLimits* limits, MemoryBudget* budget);

  // Takes what it can use from the front of `input`, up to the next step. After kMore at most
  // HttpLimits::framing_bytes are left, or as much of a head as the limits allow.
  Step Read(std::string& input);

  // Valid from kHead on. While the body is read, the fields of a trailer are added to it.
  const Head& head() const { return parser_.get(); }
  // Called once, after kHead, before the body is read: it may have so many bytes. With `in_pieces`
  // TakeBody is called again and again, and the budget does not count what it takes. False: the
  // head announces more; refusal() says so.
  bool AllowBody(std::uint64_t bytes, bool in_pieces);
  // Whether the head announces bytes of a body.
  bool has_body() const { return has_body_; }
  // Whether everything that the head announced has come.
  bool whole() const { return parser_.is_done(); }
  // These two are called once, after kRequest. The charge is the body's part of the budget.
  std::string TakeBody() { return std::exchange(parser_.get().body(), {}); }
  MemoryCharge TakeCharge() { return std::move(charge_); }
  bool charged() const { return charge_.bytes() > 0; }
  const HttpRefusal& refusal() const { return refusal_; }

 private:
  Step ReadHead(std::string& input);
  Step ReadBody(std::string& input);
  // Makes room for `bytes` more of the body, if they belong to it. False: the budget is spent.
  bool Reserve(std::size_t bytes);
  Step Refuse(int status, std::string_view message);
  Step RefuseError(const boost::system::error_code& error);
  Step RefuseLength();

  const HttpLimits& limits_;
  HeadScanner scanner_;
  boost::beast::http::request_parser<GrowingBody> parser_;
  MemoryCharge charge_;
  bool head_read_ = false;
  bool has_body_ = false;
  bool in_pieces_ = false;
  std::uint64_t max_bytes_ = 0;   // as AllowBody says
  std::uint64_t body_end_ = 0;    // the most bytes that the body has
  std::uint64_t body_bytes_ = 0;  // of the body so far
  std::uint64_t wire_bytes_ = 0;  // of the body as it was sent, framing included
  HttpRefusal refusal_;
};

}  // namespace flotilla::router
