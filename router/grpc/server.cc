#include "router/grpc/server.h"

#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "google/protobuf/stubs/logging.h"
#include "grpcpp/grpcpp.h"
#include "router/grpc/codec.h"
#include "router/grpc/generate_stream.h"
#include "router/grpc/health.h"
#include "router/grpc/inference_grpc.h"
#include "router/grpc/io_thread.h"
#include "router/grpc/reflection.h"
#include "router/grpc/unread_output.h"
#include "rpc/call_guard.h"
#include "rpc/endpoint.h"
#include "rpc/server.h"

namespace flotilla::router {
namespace {

// The methods that need no key. All others need one, reflection included.
bool IsOpen(std::string_view path) {
  return path == "/grpc.health.v1.Health/Check" || path == "/grpc.health.v1.Health/Watch";
}

// Checks keys in front of all services.
class KeyGuard final : public rpc::CallGuard {
 public:
  explicit KeyGuard(KeyGate* gate) : gate_(gate) {}

  grpc::Status Check(std::string_view path, std::string_view authorization) override {
    if (IsOpen(path)) return grpc::Status::OK;
    return ToGrpcStatus(gate_->Admit(authorization).status());
  }

 private:
  KeyGate* const gate_;
};

void Configure(const GrpcOptions& options, grpc::ServerBuilder& builder) {
  rpc::SetQuota(builder);
  // With this, an unread stream takes 64 KiB, and not more on a fast network.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.SetMaxReceiveMessageSize(options.max_request_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  // A port that is taken is an error; it is not shared.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A peer that vanished without a word is noticed after 70 s; clients may ping
  // every 10 s, with and without calls.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  // A compressed request may unpack to a thousand times its size.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
}

class GrpcServerImpl final : public GrpcServer {
 public:
  GrpcServerImpl(const GrpcOptions& options, InferenceService* service)
      : options_(options),
        io_loop_(service->OpenIoLoop(thread_.get())),
        unread_(options.unread_bytes, options.patience),
        shared_{.service = service,
                .thread = thread_.get(),
                .io_loop = io_loop_.get(),
                .tenant_metadata = options.tenant_metadata,
                .gate = options.gate,
                .buffer_bytes = options.stream_buffer_bytes,
                .stall_timeout = options.stall_timeout,
                .unread = &unread_},
        inference_(shared_),
        health_(service, thread_.get()),
        reflection_({v1::Inference::service_full_name(),
                     grpc::health::v1::Health::service_full_name(),
                     grpc::reflection::v1alpha::ServerReflection::service_full_name()}),
        server_(options.poller) {}

  ~GrpcServerImpl() override {
    Stop(absl::ZeroDuration());
    thread_->Post([this] { io_loop_.reset(); });
    thread_.reset();  // runs the work that ended calls have posted
  }

  absl::Status Listen() {
    std::shared_ptr<rpc::CallGuard> guard;
    if (options_.gate != nullptr) guard = std::make_shared<KeyGuard>(options_.gate);
    std::vector<grpc::Service*> services = {inference_.service(), health_.grpc_service()};
    const bool reflects = rpc::IsLoopback(options_.host);
    if (reflects) services.push_back(reflection_.grpc_service());
    absl::Status status =
        server_.Listen(rpc::JoinAddress(options_.host, options_.port),
                       rpc::GuardedPort(options_.tls, std::move(guard)), services,
                       [this](grpc::ServerBuilder& builder) { Configure(options_, builder); });
    if (!status.ok()) return status;
    inference_.Attach(server_);
    health_.Attach(server_);
    if (reflects) reflection_.Attach(server_);
    return absl::OkStatus();
  }

  std::uint16_t port() const override { return server_.port(); }
  std::string address() const override { return rpc::JoinAddress(options_.host, port()); }

  void Stop(absl::Duration grace) override {
    if (std::exchange(stopped_, true)) return;
    server_.Stop(grace);
    // The thread may not yet have returned from the call that ended the last
    // stream.
    absl::Notification returned;
    thread_->Post([&] { returned.Notify(); });
    returned.WaitForNotification();
  }

 private:
  const GrpcOptions options_;
  std::unique_ptr<IoThread> thread_ = std::make_unique<IoThread>();
  std::unique_ptr<IoLoop> io_loop_;
  UnreadOutput unread_;
  const GenerateStream::Shared shared_;
  InferenceGrpc inference_;
  HealthService health_;
  ReflectionService reflection_;
  rpc::Server server_;
  bool stopped_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(GrpcOptions options,
                                                              InferenceService* service) {
  // Protobuf would write a line to stderr for every request with broken UTF-8;
  // gRPC refuses those anyway.
  google::protobuf::SetLogHandler(nullptr);
  auto server = std::make_unique<GrpcServerImpl>(options, service);
  if (auto status = server->Listen(); !status.ok()) return status;
  return server;
}

}  // namespace flotilla::router
