// Connection: HTTP/1.1 on one socket. Parses requests within bounds, hands them
// to a handler one at a time, and writes answers with one write in flight.
//
// A read is always pending while fewer than `pipelined_bytes` wait, so that a
// disconnect is seen, and the exchange destroyed, while an answer is generated.
// A peer that is slow is cut off by one deadline timer; it never slows anyone
// else. Kept alive by its pending operations; lives on one I/O thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "router/http/exchange.h"
#include "router/http/server.h"

namespace flotilla {

// What the connections of one I/O thread share; outlives them.
class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  virtual HttpHandler& handler() = 0;
  virtual const HttpLimits& limits() const = 0;
  // HttpServerOptions::tenant_header
  virtual const std::string& tenant_header() const = 0;
  // True: finish the running request, then close.
  virtual bool stopping() const = 0;
  virtual std::string NewRequestId() = 0;
  // The connection is closed; called once.
  virtual void OnClosed(class Connection* connection) = 0;
};

class Connection final : public HttpReply, public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::ip::tcp::socket socket, ConnectionOwner* owner);

  void Start();
  // Answers `status` to nobody in particular and closes: too many connections.
  void Reject(int status, std::string body);
  // Closes now if no request runs, else after its answer.
  void Drain();
  // Closes now; a running request is cancelled.
  void Close();

  // HttpReply, for the handler.
  void Send(int status, std::string_view content_type, std::string body,
            const HttpHeaders& headers) override;
  void Begin(int status, std::string_view content_type, const HttpHeaders& headers) override;
  void Write(std::string_view text) override;
  void End() override;

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class State : std::uint8_t {
    kIdle,       // between requests
    kReading,    // parts of a request are there
    kServing,    // the handler answers
    kFlushing,   // the answer is complete but not sent
    kLingering,  // refused in mid-request: what still comes is thrown away
    kClosed,
  };

  void Read();
  void OnRead(const boost::system::error_code& error, std::size_t bytes);
  void Parse();
  // False: the request was refused, its body is not read.
  bool OnHeader();
  void OnRequest();
  void RefuseBadRequest(const boost::system::error_code& error);
  // Ends reading in mid-request: an answer follows, and then the connection is closed.
  void BeginRefusal();

  void AppendHead(int status, std::string_view content_type, const HttpHeaders& headers);
  void ScheduleFlush();
  void Flush();
  void OnWrite(const boost::system::error_code& error, std::size_t bytes);
  void OnAnswered();
  void NextRequest();
  void Linger();

  std::size_t unsent() const { return pending_.size() + body_.size() + writing_.size() - written_; }
  void WatchOutput();
  void SetDeadline(absl::Duration timeout);
  void ClearDeadline();

  boost::asio::ip::tcp::socket socket_;
  ConnectionOwner* const owner_;
  boost::asio::steady_timer timer_;

  State state_ = State::kIdle;
  bool reading_ = false;  // a read into chunk_ is pending
  std::array<char, 8192> chunk_;
  std::string input_;  // read and not yet parsed
  std::optional<Parser> parser_;
  bool header_seen_ = false;
  std::optional<std::string> tenant_;  // as the handler admitted the request

  std::unique_ptr<HttpExchange> exchange_;
  std::string request_id_;
  bool keep_alive_ = true;
  bool http10_ = false;
  bool chunked_ = false;   // of the current answer
  bool answered_ = false;  // End or Send was called
  bool linger_ = false;    // the peer may still be sending its request

  std::string pending_;      // framed, to be written
  std::string body_;         // streamed text, not yet framed as a chunk
  std::string writing_;      // the write in flight
  std::size_t written_ = 0;  // of writing_
  bool flush_scheduled_ = false;
  bool write_watched_ = false;  // the deadline is one for output
};

}  // namespace flotilla
