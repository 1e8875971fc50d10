// CallGuard: admits or refuses every call of a gRPC server before any message of it is read.
//
// It works in the transport, in front of all services, so it guards every method, also a new
// one or one that does not exist. A refused call reaches no handler.
#pragma once

#include <map>
#include <memory>
#include <string_view>

#include "common/auth/tls_files.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/security/server_credentials.h"

namespace flotilla::rpc {

class CallGuard {
 public:
  virtual ~CallGuard() = default;
  // `path` is "/package.Service/Method". `authorization` is the metadata of that name, empty
  // if there is none or more than one. Any status but OK ends the call. Called on gRPC's
  // threads, several at once; must not block.
  virtual grpc::Status Check(std::string_view path, std::string_view authorization) = 0;
};

// The `authorization` metadata that a guard checks.
std::string_view AuthorizationOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// `tls` (null: plaintext) with `guard` (null: everybody is admitted) in front.
std::shared_ptr<grpc::ServerCredentials> Guarded(std::shared_ptr<grpc::ServerCredentials> tls,
                                                 std::shared_ptr<CallGuard> guard);

// The credentials of a public port, with `guard` (null: everybody is admitted) in front. It shows
// the certificate of `files`, which outlives the server; changes of the files apply to new
// connections. `files` null: plaintext.
std::shared_ptr<grpc::ServerCredentials> GuardedPort(TlsFiles* files,
                                                     std::shared_ptr<CallGuard> guard);

}  // namespace flotilla::rpc
