// HealthService: grpc.health.v1 over InferenceService::Ready.
//
// gRPC's built-in service must be notified of every change. This one reads the state at each
// request, so it cannot be stale. It knows the server ("") and the service
// "flotilla.v1.Inference", which always have the same status. Called on the poller's thread;
// watchers live on the I/O loop thread.
#pragma once

#include "absl/time/time.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "router/grpc/io_thread.h"
#include "router/service.h"
#include "rpc/server.h"

namespace flotilla::router {

class HealthService {
 public:
  // Readiness is a snapshot, not an event, so the server checks it this often while there are
  // watchers. Without watchers it never does.
  static constexpr absl::Duration kWatchPeriod = absl::Seconds(1);

  // Both outlive all calls.
  HealthService(const InferenceService* service, IoThread* thread)
      : service_(service), thread_(thread) {}

  grpc::Service* grpc_service() { return &grpc_service_; }
  // Receives the calls of `server`, which listens with grpc_service() and stops before this
  // goes. Check is NOT_FOUND for a service that this server does not have; Watch sends the
  // status now, and then every change of it.
  void Attach(rpc::Server& server);

 private:
  const InferenceService* const service_;
  IoThread* const thread_;
  grpc::health::v1::Health::AsyncService grpc_service_;
};

}  // namespace flotilla::router
