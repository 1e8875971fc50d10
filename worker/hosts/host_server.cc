#include "worker/hosts/host_server.h"

#include <utility>
#include <vector>

#include "flotilla/v1/host.grpc.pb.h"
#include "proto/codec/status.h"
#include "worker/hosts/daemons.h"

namespace flotilla::worker {
namespace {

// The service checks this often whether the call was cancelled.
constexpr int kCancelCheckMs = 50;

// Each call has a gRPC thread of its own: there are few calls, and each waits for a process.
class Service final : public v1::Host::Service {
 public:
  Service(std::string program, Logger* log) : daemons_(std::move(program)), log_(log) {}

  grpc::Status Run(grpc::ServerContext* context, const v1::RunRequest* request,
                   grpc::ServerWriter<v1::RunEvent>* events) override {
    auto daemon = daemons_.Start({request->arguments().begin(), request->arguments().end()});
    if (!daemon.ok()) {
      log_->Warning("no daemon for a worker group",
                    {{"peer", context->peer()}, {"reason", daemon.status()}});
      return codec::ToGrpcStatus(daemon.status(), {});
    }
    log_->Info("daemon started for a worker group", {{"peer", context->peer()}});
    // Sends the call's initial metadata, so that the caller learns that the call has begun.
    events->SendInitialMetadata();
    while (!context->IsCancelled()) {
      Daemon::Update update = (*daemon)->Wait(kCancelCheckMs);
      v1::RunEvent event;
      if (!update.output.empty()) {
        event.set_output(std::move(update.output));
        events->Write(event);
      } else if (update.exit_code.has_value()) {
        event.set_exit_code(*update.exit_code);
        events->Write(event);
        log_->Info("daemon ended", {{"exit_code", *update.exit_code}});
        return grpc::Status::OK;
      }
    }
    log_->Info("daemon is ended with its worker group", {{"peer", context->peer()}});
    return grpc::Status::CANCELLED;
  }

 private:
  Daemons daemons_;
  Logger* const log_;
};

class HostServerImpl final : public HostServer {
 public:
  HostServerImpl(std::string program, Logger* log) : service_(std::move(program), log) {}
  ~HostServerImpl() override { Stop(); }

  absl::Status Begin(const rpc::ListenOptions& options) {
    absl::StatusOr<rpc::Listening> listening = rpc::Listen(options, {&service_});
    if (!listening.ok()) return listening.status();
    listening_ = *std::move(listening);
    return absl::OkStatus();
  }

  std::uint16_t port() const override { return listening_.port; }

  void Stop() override { listening_.Stop(); }

 private:
  Service service_;
  rpc::Listening listening_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HostServer>> HostServer::Start(HostServerOptions options,
                                                              Logger* log) {
  auto server = std::make_unique<HostServerImpl>(std::move(options.program), log);
  if (absl::Status status = server->Begin(options.listen); !status.ok()) return status;
  return server;
}

}  // namespace flotilla::worker
