#include "common/obs/metrics_server.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/intrusive/list.hpp>
#include <cerrno>
#include <chrono>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rt/descriptors.h"

namespace flotilla {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kMaxConnections = 32;
constexpr std::uint32_t kMaxHeaderBytes = 8192;
// The longest time that a request takes to arrive, that a client takes to read the answer, and
// that passes between two requests.
constexpr std::chrono::seconds kPatience{10};
// The pause before the next try when the process has no more descriptors.
constexpr std::chrono::milliseconds kAcceptDelay{100};

using SessionHook =
    boost::intrusive::list_base_hook<boost::intrusive::link_mode<boost::intrusive::auto_unlink>>;
class Session;
// The connections that wait for a request; the first has waited for longest.
using WaitingSessions =
    boost::intrusive::list<Session, boost::intrusive::constant_time_size<false>>;

// One connection. It lives as long as an operation on it is pending.
class Session : public std::enable_shared_from_this<Session>, public SessionHook {
 public:
  Session(tcp::socket socket, Metrics* metrics, WaitingSessions* waiting, int* connections)
      : stream_(std::move(socket)),
        metrics_(metrics),
        waiting_(waiting),
        connections_(connections) {
    ++*connections_;
  }
  ~Session() { --*connections_; }

  void Close() {
    unlink();
    stream_.close();
  }

  void Read() {
    waiting_->push_back(*this);
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    stream_.expires_after(kPatience);
    http::async_read(
        stream_, input_, *parser_, [self = shared_from_this()](error_code error, std::size_t) {
          self->unlink();
          if (!error) return self->Answer();
          if (error == http::error::header_limit) {
            return self->Refuse(http::status::request_header_fields_too_large);
          }
          const bool wrong =
              error.category() == http::make_error_code(http::error::bad_method).category();
          if (wrong && error != http::error::end_of_stream &&
              error != http::error::partial_message) {
            self->Refuse(http::status::bad_request);
          }
        });
  }

 private:
  void Answer() {
    const auto& request = parser_->get();
    const beast::string_view target = request.target();
    const bool keep = request.keep_alive();
    head_only_ = request.method() == http::verb::head;
    if (request.method() != http::verb::get && !head_only_) {
      return Refuse(http::status::method_not_allowed);
    }
    // With this header, the place where the next request begins is ambiguous.
    if (request.count(http::field::transfer_encoding) > 0) {
      return Refuse(http::status::bad_request);
    }
    if (target.substr(0, target.find('?')) != "/metrics") {
      return Write(http::status::not_found, "There is /metrics.\n", keep);
    }
    Write(http::status::ok, metrics_->Render(), keep);
  }

  // Answers with an error and ends the connection.
  void Refuse(http::status status) {
    Write(status, absl::StrCat(std::string(http::obsolete_reason(status)), "\n"), /*keep=*/false);
  }

  void Write(http::status status, std::string text, bool keep) {
    output_ = {status, 11};
    output_.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
    if (status == http::status::method_not_allowed) output_.set(http::field::allow, "GET, HEAD");
    output_.keep_alive(keep);
    output_.body() = std::move(text);
    output_.prepare_payload();
    if (head_only_) output_.body().clear();
    stream_.expires_after(kPatience);
    http::async_write(stream_, output_,
                      [self = shared_from_this(), keep](error_code error, std::size_t) {
                        if (!error && keep) return self->Read();
                        error_code ignored;
                        self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
                      });
  }

  beast::tcp_stream stream_;
  Metrics* const metrics_;
  WaitingSessions* const waiting_;
  int* const connections_;
  bool head_only_ = false;
  beast::flat_buffer input_{2 * kMaxHeaderBytes};
  std::optional<http::request_parser<http::empty_body>> parser_;
  http::response<http::string_body> output_;
};

// One thread accepts, reads, renders and writes.
class MetricsServerImpl final : public MetricsServer {
 public:
  explicit MetricsServerImpl(Metrics* metrics) : metrics_(metrics) {}
  ~MetricsServerImpl() override {
    io_.stop();
    if (thread_.joinable()) thread_.join();
  }

  error_code Listen(const std::string& host, const std::string& port) {
    error_code error;
    const auto found = tcp::resolver(io_).resolve(
        host, port, tcp::resolver::passive | tcp::resolver::numeric_service, error);
    if (error) return error;
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
    if (!error) acceptor_.non_blocking(true, error);
    if (error) return error;
    port_ = acceptor_.local_endpoint().port();
    Accept();
    thread_ = std::thread([this] { Run(); });
    return error;
  }

  std::uint16_t port() const override { return port_; }

 private:
  void Run() {
    while (true) {
      try {
        io_.run();
        return;
      } catch (const std::bad_alloc&) {
        // Only the connection that needed the memory is lost.
      }
    }
  }
  // Waits for a client before it calls accept. Without descriptors, accept fails even when no
  // client waits.
  void Accept() {
    acceptor_.async_wait(tcp::acceptor::wait_read, [this](error_code ended) {
      if (ended) return;
      tcp::socket socket(io_);
      error_code error;
      acceptor_.accept(socket, error);
      const bool no_descriptor = error.value() == EMFILE || error.value() == ENFILE;
      if (no_descriptor && (MakeRoom() || spare_.Release())) acceptor_.accept(socket, error);
      if (!error) {
        Serve(std::move(socket));
      } else if (error != asio::error::would_block && error != asio::error::connection_aborted) {
        return Pause();
      }
      Accept();
    });
  }
  // A connection above the limit replaces the one that has been silent for longest. If none is
  // silent, the new connection is closed.
  void Serve(tcp::socket socket) {
    if (connections_ >= kMaxConnections && !MakeRoom()) return;
    try {
      std::make_shared<Session>(std::move(socket), metrics_, &waiting_, &connections_)->Read();
      spare_.Refill();
    } catch (const std::bad_alloc&) {
      // The connection is closed.
    }
  }
  bool MakeRoom() {
    if (waiting_.empty()) return false;
    waiting_.front().Close();
    return true;
  }
  void Pause() {
    retry_.expires_after(kAcceptDelay);
    retry_.async_wait([this](error_code ended) {
      if (!ended) Accept();
    });
  }

  Metrics* const metrics_;
  int connections_ = 0;  // the sessions that io_ keeps count themselves here
  std::uint16_t port_ = 0;
  WaitingSessions waiting_;
  SpareDescriptors spare_{1};
  asio::io_context io_{1};
  tcp::acceptor acceptor_{io_};
  asio::steady_timer retry_{io_};
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    Metrics* metrics) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  auto server = std::make_unique<MetricsServerImpl>(metrics);
  const error_code error =
      server->Listen(host, colon == std::string::npos ? "0" : address.substr(colon + 1));
  if (!error) return server;
  return absl::UnavailableError(
      absl::StrCat("cannot listen on ", address, " for metrics: ", error.message()));
}

}  // namespace flotilla
