#include "router/grpc/health.h"

#include <optional>
#include <string>
#include <utility>

#include "flotilla/v1/inference.grpc.pb.h"

namespace flotilla {
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

// One Watch call; owns itself. State belongs to the lane's thread.
class Watcher final : public grpc::ServerWriteReactor<HealthCheckResponse> {
 public:
  Watcher(const InferenceService* service, LaneThread* thread, std::string name)
      : service_(service), thread_(thread), name_(std::move(name)) {
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
    const auto status = StatusOf(name_, *service_);
    if (status == response_.status()) return LookLater();
    response_.set_status(status);
    StartWrite(&response_);
  }

  void LookLater() {
    if (cancelled_) return;
    timer_ = thread_->After(HealthService::kWatchPeriod, [this] {
      timer_.reset();
      Look();
    });
  }

  const InferenceService* const service_;
  LaneThread* const thread_;
  const std::string name_;
  HealthCheckResponse response_;  // sent last; UNKNOWN: nothing yet
  std::optional<LaneThread::Timer> timer_;
  bool cancelled_ = false;
};

}  // namespace

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  auto* reactor = context->DefaultReactor();
  const auto status = StatusOf(request->service(), *service_);
  if (status == HealthCheckResponse::SERVICE_UNKNOWN) {
    reactor->Finish(grpc::Status(grpc::StatusCode::NOT_FOUND, "unknown service"));
  } else {
    response->set_status(status);
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  return new Watcher(service_, thread_, request->service());
}

}  // namespace flotilla
