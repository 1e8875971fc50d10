#include "router/grpc/health.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "flotilla/v1/inference.grpc.pb.h"
#include "rpc/writer.h"

namespace flotilla::router {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

HealthCheckResponse::ServingStatus StatusOf(const std::string& name,
                                            const InferenceService& service) {
  if (!name.empty() && name != v1::Inference::service_full_name()) {
    return HealthCheckResponse::SERVICE_UNKNOWN;
  }
  return service.Ready() ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

// One Watch call; owns itself. State belongs to the I/O loop's thread.
class Watcher final : private rpc::ServerWriter<HealthCheckRequest, HealthCheckResponse> {
 public:
  Watcher(std::unique_ptr<Call> call, const InferenceService* service, IoThread* thread)
      : ServerWriter(std::move(call)), service_(service), thread_(thread) {
    thread_->Post([this] { Look(); });
  }

 private:
  void OnWriteDone(bool ok) override {
    if (ok) thread_->Post([this] { LookLater(); });  // else OnCancel follows
  }

  void OnCancel() override {
    thread_->Post([this] {
      cancelled_ = true;
      if (timer_.has_value()) thread_->Cancel(*timer_);
      Finish(grpc::Status::CANCELLED);
    });
  }

  void OnDone() override {
    thread_->Post([this] { delete this; });
  }

  void Look() {
    if (cancelled_) return;
    const auto status = StatusOf(request().service(), *service_);
    if (status == response_.status()) return LookLater();
    response_.set_status(status);
    StartWrite(response_);
  }

  void LookLater() {
    if (cancelled_) return;
    timer_ = thread_->After(HealthService::kWatchPeriod, [this] {
      timer_.reset();
      Look();
    });
  }

  const InferenceService* const service_;
  IoThread* const thread_;
  HealthCheckResponse response_;  // sent last; UNKNOWN: nothing yet
  std::optional<IoThread::Timer> timer_;
  bool cancelled_ = false;
};

}  // namespace

void HealthService::Attach(rpc::Server& server) {
  using Service = grpc::health::v1::Health::AsyncService;
  server.OnCall(&grpc_service_, &Service::RequestCheck, [this](auto* call) {
    const auto status = StatusOf(call->request.service(), *service_);
    if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
      return call->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "unknown service"));
    }
    call->response.set_status(status);
    call->Finish(grpc::Status::OK);
  });
  server.OnWriter(&grpc_service_, &Service::RequestWatch,
                  [this](auto call) { new Watcher(std::move(call), service_, thread_); });
}

}  // namespace flotilla::router
