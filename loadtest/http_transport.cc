#include "loadtest/http_transport.h"

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
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
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

// What all exchanges of a test have in common. It outlives them.
struct HttpSettings {
  ServerTarget target;
  // The addresses of the target's host. Names are resolved once, before the test.
  tcp::resolver::results_type addresses;
  asio::ssl::context* tls = nullptr;  // with https only
  std::string route;                  // such as /v1/chat/completions
  std::string api_key;
  std::chrono::nanoseconds timeout{};
};

// One streamed request.
template <class Stream>
class HttpExchange final : public Exchange,
                           public std::enable_shared_from_this<HttpExchange<Stream>> {
 public:
  HttpExchange(asio::io_context& io, const HttpSettings& settings, std::string body,
               ExchangeListener* listener)
      : settings_(settings), stream_(MakeStream(io, settings)), listener_(listener) {
    // A stream has no bound. (Without any limit this version of Beast refuses known lengths.)
    parser_.body_limit(std::numeric_limits<std::uint64_t>::max());
    request_ = {http::verb::post, settings.target.path + settings.route, 11, std::move(body)};
    request_.set(http::field::host, settings.target.HostHeader());
    request_.set(http::field::user_agent, "flotilla-loadtest");
    request_.set(http::field::accept, "text/event-stream");
    request_.set(http::field::content_type, "application/json");
    request_.set(http::field::connection, "close");
    if (!settings.api_key.empty()) {
      request_.set(http::field::authorization, "Bearer " + settings.api_key);
    }
    request_.prepare_payload();
  }

  void Start() {
    Lowest().expires_after(settings_.timeout);
    Lowest().async_connect(settings_.addresses,
                           [self = this->shared_from_this()](error_code error, const auto&) {
                             self->OnConnected(error);
                           });
  }

  void Cancel() override {
    listener_ = nullptr;
    Lowest().close();
  }

 private:
  static Stream MakeStream(asio::io_context& io, const HttpSettings& settings) {
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      return Stream(io, *settings.tls);
    } else {
      return Stream(io);
    }
  }
  beast::tcp_stream& Lowest() { return beast::get_lowest_layer(stream_); }

  void OnConnected(error_code error) {
    if (listener_ == nullptr) return;
    if (error == asio::error::connection_refused) return Fail("connection refused");
    if (error == beast::error::timeout) return Fail("timeout");
    if (error) return Fail(absl::StrCat("cannot connect: ", error.message()));
    error_code ignored;
    Lowest().socket().set_option(tcp::no_delay(true), ignored);
    if constexpr (std::is_same_v<Stream, TlsStream>) {
      SSL_set_tlsext_host_name(stream_.native_handle(), settings_.target.host.c_str());
      stream_.set_verify_callback(asio::ssl::host_name_verification(settings_.target.host));
      stream_.async_handshake(asio::ssl::stream_base::client,
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
    http::async_write(stream_, request_,
                      [self = this->shared_from_this()](error_code error, std::size_t) {
                        if (self->listener_ == nullptr) return;
                        // A server that refuses may answer before it has read everything.
                        if (error == beast::error::timeout) return self->Fail("timeout");
                        self->ReadHead();
                      });
  }

  void ReadHead() {
    http::async_read_header(stream_, buffer_, parser_,
                            [self = this->shared_from_this()](error_code error, std::size_t) {
                              if (self->listener_ == nullptr) return;
                              if (error) return self->FailOf(error);
                              self->status_ = self->parser_.get().result_int();
                              self->ReadBody();
                            });
  }

  void ReadBody() {
    parser_.get().body().data = piece_.data();
    parser_.get().body().size = piece_.size();
    parser_.get().body().more = true;
    http::async_read_some(
        stream_, buffer_, parser_,
        [self = this->shared_from_this()](error_code error, std::size_t) { self->OnBody(error); });
  }

  void OnBody(error_code error) {
    if (listener_ == nullptr) return;
    if (error == http::error::need_buffer) error = {};
    const std::size_t size = error ? 0 : piece_.size() - parser_.get().body().size;
    TakePiece(absl::string_view(piece_.data(), size));
    if (listener_ == nullptr) return;
    if (error && status_ == 200) return FailOf(error);
    const bool ended = error || parser_.is_done();
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
    if (data == "[DONE]") return Finish();
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

  void Finish() {
    ExchangeListener* const listener = std::exchange(listener_, nullptr);
    Lowest().close();
    listener->OnFinished(usage_);
  }

  void Fail(const std::string& reason) {
    ExchangeListener* const listener = std::exchange(listener_, nullptr);
    Lowest().close();
    listener->OnFailed(reason);
  }

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

  const HttpSettings& settings_;
  Stream stream_;
  ExchangeListener* listener_;  // null: the exchange has ended
  http::request<http::string_body> request_;
  beast::flat_buffer buffer_;
  http::response_parser<http::buffer_body> parser_;
  std::array<char, 4096> piece_;  // of the body
  unsigned status_ = 0;
  std::string error_body_;
  SseParser events_;
  bool finished_ = false;  // the server said why the answer ends
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
    return options_.target.tls ? StartOn<TlsStream>(io, std::move(body), listener)
                               : StartOn<beast::tcp_stream>(io, std::move(body), listener);
  }

 private:
  template <class Stream>
  std::shared_ptr<Exchange> StartOn(asio::io_context& io, std::string body,
                                    ExchangeListener* listener) {
    auto exchange =
        std::make_shared<HttpExchange<Stream>>(io, settings_, std::move(body), listener);
    exchange->Start();
    return exchange;
  }

  const ServerOptions options_;
  asio::ssl::context tls_;
  HttpSettings settings_;
};

}  // namespace

std::unique_ptr<Transport> MakeHttpTransport(const ServerOptions& options) {
  return std::make_unique<HttpTransport>(options);
}

}  // namespace flotilla::loadtest
