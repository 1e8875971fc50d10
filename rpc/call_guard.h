// CallGuard: decides on every call of a gRPC server before anything of it is read.
//
// It stands in the transport, in front of all services: a method that nobody thought of
// is guarded, too, and so is one that does not exist. What is refused reaches no handler.
#pragma once

#include <map>
#include <memory>
#include <string_view>

#include "grpcpp/grpcpp.h"
#include "grpcpp/security/server_credentials.h"

namespace flotilla::rpc {

class CallGuard {
 public:
  virtual ~CallGuard() = default;
  // `path` is "/package.Service/Method"; `authorization` is that metadata, empty if there
  // is none or more than one. Anything but OK ends the call. Called on gRPC's threads,
  // several at once; must not block.
  virtual grpc::Status Check(std::string_view path, std::string_view authorization) = 0;
};

// The metadata that a guard judges by.
std::string_view AuthorizationOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// `tls` (null: plaintext) with `guard` (null: everybody is admitted) in front of it.
std::shared_ptr<grpc::ServerCredentials> Guarded(std::shared_ptr<grpc::ServerCredentials> tls,
                                                 std::shared_ptr<CallGuard> guard);

}  // namespace flotilla::rpc
