#include "router/http/server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <new>
#include <random>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/rt/descriptors.h"
#include "common/rt/steady_now.h"
#include "common/types/text.h"
#include "router/http/api_error.h"
#include "router/http/api_handler.h"
#include "router/http/connection.h"
#include "router/http/host_policy.h"

namespace flotilla::router {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// The connections of a thread that were refused on arrival and whose peers have not closed them
// yet.
constexpr std::size_t kMaxRefused = 32;
// Before TLS has begun, a peer can make OpenSSL hold up to 150 KiB, so all of them together 40 MiB.
constexpr std::size_t kMaxHandshakes = 256;

// Whether the list has so many, without counting more.
bool AtLeast(std::size_t count, const ConnectionLists::List& list) {
  for (auto at = list.begin(); count > 0 && at != list.end(); ++at) --count;
  return count == 0;
}

// One I/O thread: an io_context, the I/O loop, and the connections it owns.
class IoThread final : public ConnectionOwner, public Dispatcher {
 public:
  // The state that the threads of a server share. It outlives them.
  struct Shared {
    explicit Shared(HttpServerOptions given)
        : options(std::move(given)), body_memory(options.body_memory_bytes) {}
    const HttpServerOptions options;
    const std::string too_many_connections =
        ErrorJson(absl::UnavailableError("too many connections"));
    std::atomic<std::uint32_t> connections = 0;
    MemoryBudget body_memory;
    std::atomic<std::int64_t> unsent_bytes = 0;
    // Called when a connection has closed, on its thread.
    std::function<void()> on_closed;
  };

  IoThread(Shared* shared, InferenceService* service)
      : shared_(*shared),
        options_(shared->options),
        io_loop_(service->OpenIoLoop(this)),
        handler_(MakeApiHandler({.permissive = options_.permissive,
                                 .max_prompts = options_.max_prompts,
                                 .metrics = options_.metrics,
                                 .refusals = options_.refusals,
                                 .gate = options_.gate,
                                 .admin = options_.admin,
                                 .hosts = HostPolicy(options_.address, options_.allowed_hosts),
                                 .pages = options_.pages,
                                 .health_only = options_.health_only,
                                 .files = options_.files,
                                 .files_metrics = options_.files_metrics,
                                 .dispatcher = this},
                                service, io_loop_.get())),
        work_(context_.get_executor()),
        request_ids_(std::random_device{}()),
        thread_([this] { Run(); }) {}

  ~IoThread() override {
    work_.reset();
    context_.stop();
    thread_.join();
    // Handlers that never ran, and with them the last connections, go with the
    // context; their generations need the I/O loop.
    connections_.clear();
  }

  asio::io_context& context() { return context_; }

  // Any thread may call it.
  void Adopt(tcp::socket socket) {
    asio::post(context_, [this, socket = std::move(socket)]() mutable {
      std::shared_ptr<const TlsContext> tls;
      if (options_.tls != nullptr) tls = options_.tls->Get()->context;
      auto connection = std::make_shared<Connection>(std::move(socket), std::move(tls), this);
      connections_.insert(connection);
      const bool full = shared_.connections.fetch_add(1) >= options_.max_connections && !MakeRoom();
      if (full || stopping_) {
        if (full && options_.refusals != nullptr) options_.refusals->OnConnectionRefused();
        // They take nobody's place, but they hold descriptors, which others need.
        shared_.connections.fetch_sub(1);
        if (AtLeast(kMaxRefused, lists_.refused)) lists_.refused.front().Close();
        connection->Reject(503, shared_.too_many_connections);
      } else {
        if (AtLeast(kMaxHandshakes, lists_.handshake)) lists_.handshake.front().Close();
        connection->Start();
      }
    });
  }

  // May be called on any thread. `drained` is called once, on the I/O thread, when the last
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

  // Closes the connection that has kept the server waiting for longest: one that is not encrypted
  // yet, or has been idle, or in a request's head, or in its body for too long. False: there is
  // none. I/O thread.
  bool MakeRoom() {
    if (!lists_.handshake.empty()) {
      lists_.handshake.front().Close();
      return true;
    }
    for (ConnectionLists::List* list : {&lists_.idle, &lists_.head}) {
      if (list->empty() || !HasWaited(list->front(), options_.limits.fresh)) continue;
      list->front().Close();
      return true;
    }
    if (lists_.body.empty() || !HasWaited(lists_.body.front(), options_.limits.slow_body)) {
      return false;
    }
    lists_.body.front().Close();
    return true;
  }

  // Dispatcher
  void Post(std::function<void()> work) override { asio::post(context_, std::move(work)); }

  // ConnectionOwner
  HttpHandler& handler() override { return *handler_; }
  const HttpLimits& limits() const override { return options_.limits; }
  const std::string& tenant_header() const override { return options_.tenant_header; }
  MemoryBudget& body_memory() override { return shared_.body_memory; }
  ConnectionLists& lists() override { return lists_; }
  bool MakeRoomForBody(const Connection* asking) override {
    for (Connection& one : lists_.body) {
      if (&one == asking || !HasWaited(one, options_.limits.slow_body)) return false;
      if (!one.holds_body_memory()) continue;
      one.RefuseSlowBody();
      return true;
    }
    return false;
  }
  boost::asio::mutable_buffer chunk() override { return asio::buffer(chunk_); }
  void OnUnsent(std::int64_t change) override {
    shared_.unsent_bytes += change;
    while (change > 0 && UnsentIsTooMuch()) {
      Connection* worst = nullptr;
      for (const auto& one : connections_) {
        if (!one->TakesSlowly()) continue;
        if (worst == nullptr || one->unsent_bytes() > worst->unsent_bytes()) worst = one.get();
      }
      if (worst == nullptr) return;
      worst->Close();
    }
  }
  bool stopping() const override { return stopping_; }
  std::string NewRequestId() override {
    return absl::StrCat("req-", absl::Hex(request_ids_(), absl::kZeroPad16));
  }
  void OnHandshake(bool done) override {
    if (options_.on_handshake) options_.on_handshake(done);
  }
  void OnClosed(Connection* connection) override {
    connections_.erase(connection->shared_from_this());
    if (!connection->refused()) shared_.connections.fetch_sub(1);
    shared_.on_closed();
    ReportIfDrained();
  }

 private:
  void Run() {
    while (true) {
      try {
        context_.run();
        return;
      } catch (const std::bad_alloc&) {
        // This piece of work is lost, because there is no memory. Connections handle their own.
      }
    }
  }
  static bool HasWaited(const Connection& connection, absl::Duration time) {
    return std::chrono::steady_clock::now() - connection.since() >= absl::ToChronoNanoseconds(time);
  }
  bool UnsentIsTooMuch() const {
    return shared_.unsent_bytes > static_cast<std::int64_t>(options_.output_memory_bytes);
  }
  template <class Visit>
  void ForAll(Visit visit) {
    const std::vector<std::shared_ptr<Connection>> all(connections_.begin(), connections_.end());
    for (const auto& connection : all) visit(*connection);
  }
  void ReportIfDrained() {
    if (drained_ && connections_.empty()) std::exchange(drained_, nullptr)();
  }

  Shared& shared_;
  const HttpServerOptions& options_;
  // Destroyed in reverse: connections, then what their exchanges use, then the
  // context that the sockets belong to.
  asio::io_context context_{1};
  std::unique_ptr<IoLoop> io_loop_;
  std::unique_ptr<HttpHandler> handler_;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  ConnectionLists lists_;
  std::array<char, 8192> chunk_;
  bool stopping_ = false;
  std::function<void()> drained_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::mt19937_64 request_ids_;
  std::thread thread_;
};

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(HttpServerOptions options, InferenceService* service)
      : shared_(std::move(options)),
        options_(shared_.options),
        service_(service),
        spare_(options_.spare_descriptors) {
    shared_.on_closed = [this] {
      spare_.Refill();
      if (!stalled_) return;
      asio::post(threads_[0]->context(), [this] { Accept(); });
      stalled_ = false;
    };
  }
  ~HttpServerImpl() override { Stop(absl::ZeroDuration()); }

  absl::StatusOr<std::uint16_t> Start() override;
  void Stop(absl::Duration grace) override;

 private:
  void Accept();
  void AcceptOne();
  void PauseAccepting();

  IoThread::Shared shared_;
  const HttpServerOptions& options_;
  InferenceService* const service_;
  SpareDescriptors spare_;
  std::atomic<bool> stalled_ = false;  // nothing will accept until a connection closes
  std::vector<std::unique_ptr<IoThread>> threads_;
  // Only threads_[0] uses these once it accepts connections.
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
    threads_.push_back(std::make_unique<IoThread>(&shared_, service_));
  }
  acceptor_ = std::make_unique<tcp::acceptor>(threads_[0]->context());
  acceptor_->open(endpoint.protocol(), error);
  if (error) return fail("cannot open");
  acceptor_->set_option(tcp::acceptor::reuse_address(true), error);
  acceptor_->bind(endpoint, error);
  if (error) return fail("cannot bind");
  acceptor_->listen(asio::socket_base::max_listen_connections, error);
  if (error) return fail("cannot listen on");
  acceptor_->non_blocking(true, error);
  if (error) return fail("cannot listen on");
  const std::uint16_t port = acceptor_->local_endpoint(error).port();
  accept_pause_ = std::make_unique<asio::steady_timer>(threads_[0]->context());
  asio::post(threads_[0]->context(), [this] { Accept(); });
  return port;
}

void HttpServerImpl::Accept() {
  if (!accepting_) return;
  // The system says that there are no descriptors even if nobody waits; so this is waited for.
  acceptor_->async_wait(tcp::acceptor::wait_read, [this](error_code error) {
    if (error == asio::error::operation_aborted) return;
    try {
      AcceptOne();
    } catch (const std::bad_alloc&) {
      PauseAccepting();
    }
  });
}

void HttpServerImpl::AcceptOne() {
  if (!accepting_) return;
  // A socket is created on the context that will serve it.
  IoThread& thread = *threads_[next_thread_];
  next_thread_ = (next_thread_ + 1) % threads_.size();
  tcp::socket socket(thread.context());
  error_code error;
  acceptor_->accept(socket, error);
  const bool no_descriptor = error.value() == EMFILE || error.value() == ENFILE;
  if (no_descriptor && (threads_[0]->MakeRoom() || spare_.Release())) {
    acceptor_->accept(socket, error);
  }
  if (!error) {
    thread.Adopt(std::move(socket));
  } else if (error != asio::error::connection_aborted && error != asio::error::would_block) {
    return PauseAccepting();
  }
  Accept();
}

// Lets the backlog wait a moment, until a descriptor or memory is free again.
void HttpServerImpl::PauseAccepting() {
  try {
    accept_pause_->expires_after(std::chrono::milliseconds(100));
    accept_pause_->async_wait([this](error_code cancelled) {
      if (!cancelled) Accept();
    });
  } catch (const std::bad_alloc&) {
    stalled_ = true;  // a connection that closes leaves memory
  }
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
  const absl::Time deadline = SteadyNow() + grace;
  for (auto& done : drained) done->WaitForNotificationWithTimeout(deadline - SteadyNow());
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

}  // namespace flotilla::router
