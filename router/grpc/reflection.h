// The standard gRPC reflection protocol (v1alpha): what grpcurl and its like ask for the
// types of a server whose .proto files they do not have.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "rpc/server.h"

namespace flotilla {

class ReflectionService {
 public:
  // `services`: full names of those that it describes; types it knows are all that are linked.
  explicit ReflectionService(std::vector<std::string> services) : services_(std::move(services)) {}

  // Unanswered at most: a client that asks and does not read is cut off.
  static constexpr std::size_t kMaxWaiting = 16;

  // The answer to one question; NOT_FOUND, INVALID_ARGUMENT are answers, too.
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

}  // namespace flotilla
