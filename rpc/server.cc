#include "rpc/server.h"

#include "absl/time/clock.h"
#include "rpc/guards.h"
#include "rpc/ports.h"

namespace flotilla::rpc {

void CallCount::Add(int calls) {
  absl::MutexLock lock(&mu_);
  calls_ += calls;
}

void CallCount::WaitForNone() const {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(
      +[](const int* calls) { return *calls == 0; }, &calls_));
}

Server::Server(std::shared_ptr<Poller> poller) : poller_(SharedOrOwn(std::move(poller))) {}

absl::Status Server::Listen(const ListenOptions& options,
                            const std::vector<grpc::Service*>& services) {
  return Listen(JoinAddress(options.host, options.port), ServerCredentialsOf(options), services,
                ConfigureInternal);
}

absl::Status Server::Listen(const std::string& address,
                            std::shared_ptr<grpc::ServerCredentials> credentials,
                            const std::vector<grpc::Service*>& services,
                            absl::FunctionRef<void(grpc::ServerBuilder&)> configure) {
  if (absl::Status guarded = CheckGuards(); !guarded.ok()) return guarded;
  grpc::ServerBuilder& builder = poller_->builder();
  configure(builder);
  int port = 0;
  builder.AddListeningPort(address, std::move(credentials), &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port <= 0) {
    return CannotListen(address);
  }
  port_ = static_cast<std::uint16_t>(port);
  return absl::OkStatus();
}

void Server::Stop(absl::Duration grace) {
  if (server_ == nullptr) return;
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
  count_.WaitForNone();
  server_.reset();
}

}  // namespace flotilla::rpc
