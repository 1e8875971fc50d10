// The standard gRPC reflection protocol (v1alpha). Tools such as grpcurl use it to get the
// types of a server whose .proto files they do not have.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "rpc/server.h"

namespace flotilla::router {

class ReflectionService {
 public:
  // `services` are the full names of the services that it lists. It knows all types that are
  // linked into the process.
  explicit ReflectionService(std::vector<std::string> services) : services_(std::move(services)) {}

  // The most unanswered questions. A client that asks more without reading is cut off.
  static constexpr std::size_t kMaxWaiting = 16;

  // The answer to one question. NOT_FOUND and INVALID_ARGUMENT are answers, too.
  grpc::reflection::v1alpha::ServerReflectionResponse Answer(
      const grpc::reflection::v1alpha::ServerReflectionRequest& request) const;

  grpc::Service* grpc_service() { return &grpc_service_; }
  // Receives the calls of `server`, which listens with grpc_service() and stops before this
  // goes.
  void Attach(rpc::Server& server);

 private:
  const std::vector<std::string> services_;
  grpc::reflection::v1alpha::ServerReflection::AsyncService grpc_service_;
};

}  // namespace flotilla::router
