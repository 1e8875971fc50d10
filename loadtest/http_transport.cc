#include "loadtest/http_transport.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/beast/ssl/ssl_stream.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "loadtest/core/answer_event.h"
#include "loadtest/core/sse_parser.h"

namespace flotilla::loadtest {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using beast::error_code;
using TlsStream = beast::ssl_stream<beast::tcp_stream>;

// The most that is read of an answer that is an error.
constexpr std::size_t kMaxErrorBytes = 64 << 10;

// With keep_alive the end of a chunked body is waited for after [DONE], at most for so long.
constexpr std::chrono::seconds kMaxWaitForBodyEnd{1};

// What all exchanges of a test have in common. It outlives them.
struct HttpSettings {
  ServerTarget target;
  // The addresses of the target's host. Names are resolved once, before the test.
  tcp::resolver::results_type addresses;
  asio::ssl::context* tls = nullptr;  // with https only
  std::string route;                  // such as /v1/chat/completions
  std::string api_key;
  std::chrono::nanoseconds timeout{};
  bool keep_alive = false;
};

// A connection to the server. One exchange at a time uses it.
template <class Stream>
struct HttpConnection {
  HttpConnection(asio::io_context& io, const HttpSettings& settings)
      : stream(MakeStream(io, settings)) {}

  static Stream MakeStream(asio::io_context& io, const HttpSettings& settings) {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      return Stream(io, *settings.tls);
    } else {
      return Stream(io);
    }
  }

  Stream stream;
  beast::flat_buffer buffer;
  bool served = false;  // an earlier exchange
};

// The connections that no exchange uses.
template <class Stream>
class IdleConnections {
 public:
  void Put(std::unique_ptr<HttpConnection<Stream>> connection) {
    beast::get_lowest_layer(connection->stream).expires_never();
    connection->served = true;
    idle_.push_back(std::move(connection));
  }
  // The one that was used last, so that those that nobody needs become old; null if there is none
  // that the server has left open.
  std::unique_ptr<HttpConnection<Stream>> Take() {
    while (!idle_.empty()) {
      std::unique_ptr<HttpConnection<Stream>> last = std::move(idle_.back());
      idle_.pop_back();
      if (last->buffer.size() == 0 && IsQuiet(*last)) return last;
    }
    return nullptr;
  }
  void Clear() { idle_.clear(); }

 private:
  // The server has neither closed it nor sent anything.
  static bool IsQuiet(HttpConnection<Stream>& connection) {
    char byte = 0;
    const int socket = beast::get_lowest_layer(connection.stream).socket().native_handle();
    return recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
           (errno == EAGAIN || errno == EWOULDBLOCK);
  }

  std::vector<std::unique_ptr<HttpConnection<Stream>>> idle_;
};

// One streamed request.
template <class Stream>
class HttpExchange final : public Exchange,
                           public std::enable_shared_from_this<HttpExchange<Stream>> {
 public:
  HttpExchange(asio::io_context& io, const HttpSettings& settings, IdleConnections<Stream>* idle,
               std::string body, ExchangeListener* listener)
      : io_(io), settings_(settings), idle_(idle), listener_(listener) {
    request_ = {http::verb::post, settings.target.path + settings.route, 11, std::move(body)};
    request_.set(http::field::host, settings.target.HostHeader());
    request_.set(http::field::user_agent, "flotilla-loadtest");
    request_.set(http::field::accept, "text/event-stream");
    request_.set(http::field::content_type, "application/json");
    if (!settings.keep_alive) request_.set(http::field::connection, "close");
    if (!settings.api_key.empty()) {
      request_.set(http::field::authorization, "Bearer " + settings.api_key);
    }
    request_.prepare_payload();
  }

  void Start() {
    deadline_ = std::chrono::steady_clock::now() + settings_.timeout;
    connection_ = idle_->Take();
    if (connection_ == nullptr) return Connect();
    Lowest().expires_at(deadline_);
    Write();
  }

  void Cancel() override {
    if (std::exchange(listener_, nullptr) != nullptr) Lowest().close();
  }

 private:
  using Parser = http::response_parser<http::buffer_body>;

  beast::tcp_stream& Lowest() { return beast::get_lowest_layer(connection_->stream); }

  void Connect() {
    connection_ = std::make_unique<HttpConnection<Stream>>(io_, settings_);
    Lowest().expires_at(deadline_);
    Lowest().async_connect(settings_.addresses,
                           [self = this->shared_from_this()](error_code error, const auto&) {
                             self->OnConnected(error);
                           });
  }

  void OnConnected(error_code error) {
    if (listener_ == nullptr) return;
    if (error == asio::error::connection_refused) return Fail("connection refused");
    if (error == beast::error::timeout) return Fail("timeout");
    if (error) return Fail(absl::StrCat("cannot connect: ", error.message()));
    error_code ignored;
    Lowest().socket().set_option(tcp::no_delay(true), ignored);
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      Stream& stream = connection_->stream;
      SSL_set_tlsext_host_name(stream.native_handle(), settings_.target.host.c_str());
      stream.set_verify_callback(asio::ssl::host_name_verification(settings_.target.host));
      stream.async_handshake(asio::ssl::stream_base::client,
                             [self = this->shared_from_this()](error_code handshake) {
                               if (self->listener_ == nullptr) return;
                               if (handshake) {
                                 return self->Fail(absl::StrCat("TLS: ", handshake.message()));
                               }
                               self->Write();
                             });
    } else {
      Write();
    }
  }

  void Write() {
    // A stream has no bound. (Without any limit this version of Beast refuses known lengths.)
    parser_.emplace().body_limit(std::numeric_limits<std::uint64_t>::max());
    http::async_write(connection_->stream, request_,
                      [self = this->shared_from_this()](error_code error, std::size_t) {
                        if (self->listener_ == nullptr) return;
                        // A server that refuses may answer before it has read everything.
                        if (error == beast::error::timeout) return self->Fail("timeout");
                        self->ReadHead();
                      });
  }

  void ReadHead() {
    http::async_read_header(
        connection_->stream, connection_->buffer, *parser_,
        [self = this->shared_from_this()](error_code error, std::size_t) { self->OnHead(error); });
  }

  void OnHead(error_code error) {
    if (listener_ == nullptr) return;
    // The server closed the connection while the request was on its way. A new one cannot meet that
    // again, and a request for text may be sent twice.
    const bool was_closed = error && error != beast::error::timeout && !parser_->got_some();
    if (was_closed && connection_->served) return Connect();
    if (error) return FailOf(error);
    status_ = parser_->get().result_int();
    ReadBody();
  }

  void ReadBody() {
    parser_->get().body().data = piece_.data();
    parser_->get().body().size = piece_.size();
    parser_->get().body().more = true;
    http::async_read_some(
        connection_->stream, connection_->buffer, *parser_,
        [self = this->shared_from_this()](error_code error, std::size_t) { self->OnBody(error); });
  }

  void OnBody(error_code error) {
    if (listener_ == nullptr) return;
    if (error == http::error::need_buffer) error = {};
    const std::size_t size = error ? 0 : piece_.size() - parser_->get().body().size;
    if (!done_) TakePiece(absl::string_view(piece_.data(), size));
    if (listener_ == nullptr) return;
    const bool ended = error || parser_->is_done();
    if (done_) return ended ? Finish() : ReadBody();
    if (error && status_ == 200) return FailOf(error);
    if (status_ != 200 && (ended || error_body_.size() >= kMaxErrorBytes)) return FailOfStatus();
    if (!ended) return ReadBody();
    // A server that writes no [DONE] has at least said why the answer ends.
    if (finished_) return Finish();
    Fail("connection cut");
  }

  void TakePiece(absl::string_view piece) {
    if (status_ != 200) {
      error_body_.append(piece.data(), piece.size());
      return;
    }
    const bool fine = events_.Feed(piece, [this](absl::string_view data) {
      if (listener_ != nullptr) TakeEvent(data);
    });
    if (!fine && listener_ != nullptr) Fail("bad stream");
  }

  void TakeEvent(absl::string_view data) {
    if (done_) return;
    if (data == "[DONE]") return OnDone();
    const std::optional<AnswerEvent> event = ReadAnswerEvent(data);
    if (!event.has_value()) return Fail("bad stream");
    if (event->failed) {
      return Fail(absl::StrCat("error in the stream: ", PlainCode(event->error_code)));
    }
    usage_.completion_tokens = event->completion_tokens.value_or(usage_.completion_tokens);
    usage_.prompt_tokens = event->prompt_tokens.value_or(usage_.prompt_tokens);
    usage_.cached_tokens = event->cached_tokens.value_or(usage_.cached_tokens);
    finished_ = finished_ || event->finished;
    if (!event->text.empty()) listener_->OnText(event->text);
  }

  void OnDone() {
    if (!settings_.keep_alive) return Finish();
    done_ = true;
    Lowest().expires_after(kMaxWaitForBodyEnd);
  }

  // Ends the exchange, and leaves its connection to another if the answer has been read to its end.
  ExchangeListener* End() {
    if (settings_.keep_alive && parser_.has_value() && parser_->is_done() &&
        parser_->keep_alive()) {
      idle_->Put(std::move(connection_));
    } else {
      Lowest().close();
    }
    return std::exchange(listener_, nullptr);
  }
  void Finish() { End()->OnFinished(usage_); }
  void Fail(const std::string& reason) { End()->OnFailed(reason); }

  void FailOf(error_code error) {
    if (error == beast::error::timeout) return Fail("timeout");
    if (error.category() == http::make_error_code(http::error::bad_status).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message) {
      return Fail(absl::StrCat("bad HTTP: ", error.message()));
    }
    Fail("connection cut");
  }

  void FailOfStatus() {
    const std::optional<AnswerEvent> event = ReadAnswerEvent(error_body_);
    const std::string code = event.has_value() ? PlainCode(event->error_code) : "";
    Fail(absl::StrCat("HTTP ", status_, code.empty() ? "" : " ", code));
  }

  asio::io_context& io_;
  const HttpSettings& settings_;
  IdleConnections<Stream>* const idle_;
  ExchangeListener* listener_;  // null: the exchange has ended
  std::chrono::steady_clock::time_point deadline_;
  // Null only after the exchange has ended and has left it to another.
  std::unique_ptr<HttpConnection<Stream>> connection_;
  http::request<http::string_body> request_;
  std::optional<Parser> parser_;
  std::array<char, 4096> piece_;  // of the body
  unsigned status_ = 0;
  std::string error_body_;
  SseParser events_;
  bool finished_ = false;  // the server said why the answer ends
  bool done_ = false;      // [DONE] has come, and the end of the body is waited for
  RequestUsage usage_;
};

class HttpTransport final : public Transport {
 public:
  explicit HttpTransport(const ServerOptions& options)
      : options_(options), tls_(asio::ssl::context::tls_client) {
    settings_.target = options.target;
    settings_.api_key = options.api_key;
    settings_.route = options.shape.chat ? "/v1/chat/completions" : "/v1/completions";
    settings_.timeout = std::chrono::nanoseconds(options.timeout_ns);
    settings_.keep_alive = options.keep_alive;
  }

  absl::Status Prepare(asio::io_context& io) override {
    if (absl::Status s = CheckShape(options_.shape); !s.ok()) return s;
    error_code error;
    tcp::resolver resolver(io);
    settings_.addresses = resolver.resolve(options_.target.host, options_.target.port, error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("no address of ", options_.target.host, ": ", error.message()));
    }
    if (!options_.target.tls) return absl::OkStatus();
    settings_.tls = &tls_;
    tls_.set_default_verify_paths(error);
    if (!options_.ca_file.empty()) tls_.load_verify_file(options_.ca_file, error);
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("the certificates of ", options_.ca_file, ": ", error.message()));
    }
    tls_.set_verify_mode(options_.verify_tls ? asio::ssl::verify_peer : asio::ssl::verify_none);
    return absl::OkStatus();
  }

  std::shared_ptr<Exchange> Start(asio::io_context& io, const std::vector<std::string>& said,
                                  std::uint32_t max_tokens, ExchangeListener* listener) override {
    std::string body = RequestBody(options_.shape, said, max_tokens);
    return options_.target.tls ? StartOn(io, &idle_tls_, std::move(body), listener)
                               : StartOn(io, &idle_, std::move(body), listener);
  }

  void Drain() override {
    idle_.Clear();
    idle_tls_.Clear();
  }

 private:
  template <class Stream>
  std::shared_ptr<Exchange> StartOn(asio::io_context& io, IdleConnections<Stream>* idle,
                                    std::string body, ExchangeListener* listener) {
    auto exchange =
        std::make_shared<HttpExchange<Stream>>(io, settings_, idle, std::move(body), listener);
    exchange->Start();
    return exchange;
  }

  const ServerOptions options_;
  asio::ssl::context tls_;
  HttpSettings settings_;
  IdleConnections<beast::tcp_stream> idle_;
  IdleConnections<TlsStream> idle_tls_;
};

}  // namespace

std::unique_ptr<Transport> MakeHttpTransport(const ServerOptions& options) {
  return std::make_unique<HttpTransport>(options);
}

}  // namespace flotilla::loadtest
