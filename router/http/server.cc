#include "router/http/server.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "model/text.h"
#include "router/http/api_handler.h"
#include "router/http/connection.h"

namespace flotilla {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr char kTooManyConnections[] =
    R"({"error":{"message":"too many connections","type":"service_unavailable_error",)"
    R"("param":null,"code":"server_is_overloaded"}})";

// One I/O thread: an io_context, the lane, and the connections it owns.
class IoThread final : public ConnectionOwner, public Dispatcher {
 public:
  IoThread(const HttpServerOptions& options, InferenceService* service,
           std::atomic<std::uint32_t>* connection_count)
      : options_(options),
        connection_count_(connection_count),
        lane_(service->OpenLane(this)),
        handler_(MakeApiHandler({.lenient = options.lenient,
                                 .max_prompts = options.max_prompts,
                                 .metrics = options.metrics,
                                 .probe = options.probe,
                                 .gate = options.gate},
                                service, lane_.get())),
        work_(context_.get_executor()),
        request_ids_(std::random_device{}()),
        thread_([this] { context_.run(); }) {}

  ~IoThread() override {
    work_.reset();
    context_.stop();
    thread_.join();
    // Handlers that never ran, and with them the last connections, go with the
    // context; their generations need the lane.
    connections_.clear();
  }

  asio::io_context& context() { return context_; }

  // Any thread.
  void Adopt(tcp::socket socket) {
    asio::post(context_, [this, socket = std::move(socket)]() mutable {
      const bool full = connection_count_->fetch_add(1) >= options_.max_connections;
      auto connection = std::make_shared<Connection>(std::move(socket), this);
      connections_.insert(connection);
      if (full || stopping_) {
        connection->Reject(503, kTooManyConnections);
      } else {
        connection->Start();
      }
    });
  }

  // Any thread. `drained` is called once, on the I/O thread, when the last
  // connection has closed.
  void Drain(std::function<void()> drained) {
    asio::post(context_, [this, drained = std::move(drained)]() mutable {
      stopping_ = true;
      drained_ = std::move(drained);
      ForAll([](Connection& connection) { connection.Drain(); });
      ReportIfDrained();
    });
  }
  void CloseAll() {
    asio::post(context_, [this] { ForAll([](Connection& connection) { connection.Close(); }); });
  }

  // Dispatcher
  void Post(std::function<void()> work) override { asio::post(context_, std::move(work)); }

  // ConnectionOwner
  HttpHandler& handler() override { return *handler_; }
  const HttpLimits& limits() const override { return options_.limits; }
  const std::string& tenant_header() const override { return options_.tenant_header; }
  bool stopping() const override { return stopping_; }
  std::string NewRequestId() override {
    return absl::StrCat("req-", absl::Hex(request_ids_(), absl::kZeroPad16));
  }
  void OnClosed(Connection* connection) override {
    connections_.erase(connection->shared_from_this());
    connection_count_->fetch_sub(1);
    ReportIfDrained();
  }

 private:
  template <class Visit>
  void ForAll(Visit visit) {
    const std::vector<std::shared_ptr<Connection>> all(connections_.begin(), connections_.end());
    for (const auto& connection : all) visit(*connection);
  }
  void ReportIfDrained() {
    if (drained_ && connections_.empty()) std::exchange(drained_, nullptr)();
  }

  const HttpServerOptions& options_;
  std::atomic<std::uint32_t>* const connection_count_;
  // Destroyed in reverse: connections, then what their exchanges use, then the
  // context that the sockets belong to.
  asio::io_context context_{1};
  std::unique_ptr<Lane> lane_;
  std::unique_ptr<HttpHandler> handler_;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  bool stopping_ = false;
  std::function<void()> drained_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::mt19937_64 request_ids_;
  std::thread thread_;
};

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(HttpServerOptions options, InferenceService* service)
      : options_(std::move(options)), service_(service) {}
  ~HttpServerImpl() override { Stop(absl::ZeroDuration()); }

  absl::StatusOr<std::uint16_t> Start() override;
  void Stop(absl::Duration grace) override;

 private:
  void Accept();

  const HttpServerOptions options_;
  InferenceService* const service_;
  std::atomic<std::uint32_t> connection_count_ = 0;
  std::vector<std::unique_ptr<IoThread>> threads_;
  // From here on used on threads_[0] only, once it accepts.
  std::unique_ptr<tcp::acceptor> acceptor_;
  std::unique_ptr<asio::steady_timer> accept_pause_;
  std::size_t next_thread_ = 0;
  bool accepting_ = true;
};

absl::StatusOr<std::uint16_t> HttpServerImpl::Start() {
  error_code error;
  const auto address = asio::ip::make_address(options_.address, error);
  if (error) return InvalidArgument("not an IP address: ", options_.address);
  const tcp::endpoint endpoint(address, options_.port);
  const auto fail = [&](std::string_view what) {
    acceptor_.reset();
    threads_.clear();
    return absl::UnavailableError(
        Cat(what, " ", options_.address, ":", options_.port, ": ", error.message()));
  };
  for (std::uint32_t i = 0; i < std::max(options_.io_threads, 1u); ++i) {
    threads_.push_back(std::make_unique<IoThread>(options_, service_, &connection_count_));
  }
  acceptor_ = std::make_unique<tcp::acceptor>(threads_[0]->context());
  acceptor_->open(endpoint.protocol(), error);
  if (error) return fail("cannot open");
  acceptor_->set_option(tcp::acceptor::reuse_address(true), error);
  acceptor_->bind(endpoint, error);
  if (error) return fail("cannot bind");
  acceptor_->listen(asio::socket_base::max_listen_connections, error);
  if (error) return fail("cannot listen on");
  const std::uint16_t port = acceptor_->local_endpoint(error).port();
  accept_pause_ = std::make_unique<asio::steady_timer>(threads_[0]->context());
  asio::post(threads_[0]->context(), [this] { Accept(); });
  return port;
}

void HttpServerImpl::Accept() {
  if (!accepting_) return;
  // A socket is born on the context that will serve it.
  IoThread& thread = *threads_[next_thread_];
  next_thread_ = (next_thread_ + 1) % threads_.size();
  acceptor_->async_accept(thread.context(), [this, &thread](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (!error) {
      thread.Adopt(std::move(socket));
      return Accept();
    }
    // Out of descriptors, as a rule: the backlog can wait a moment.
    accept_pause_->expires_after(std::chrono::milliseconds(100));
    accept_pause_->async_wait([this](error_code cancelled) {
      if (!cancelled) Accept();
    });
  });
}

void HttpServerImpl::Stop(absl::Duration grace) {
  if (threads_.empty()) return;
  absl::Notification closed;
  asio::post(threads_[0]->context(), [this, &closed] {
    accepting_ = false;
    error_code ignored;
    acceptor_->close(ignored);
    accept_pause_->cancel();
    closed.Notify();
  });
  closed.WaitForNotification();
  std::vector<std::unique_ptr<absl::Notification>> drained;
  for (auto& thread : threads_) {
    drained.push_back(std::make_unique<absl::Notification>());
    thread->Drain([done = drained.back().get()] { done->Notify(); });
  }
  const absl::Time deadline = absl::Now() + grace;
  for (auto& done : drained) done->WaitForNotificationWithTimeout(deadline - absl::Now());
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    threads_[i]->CloseAll();
    drained[i]->WaitForNotification();
  }
  acceptor_.reset();
  accept_pause_.reset();
  threads_.clear();
}

}  // namespace

std::unique_ptr<HttpServer> HttpServer::Create(HttpServerOptions options,
                                               InferenceService* service) {
  return std::make_unique<HttpServerImpl>(std::move(options), service);
}

}  // namespace flotilla
