// Credentials: how a process of the fleet proves that it is one, and demands it of others.
//
// Two proofs, either or both. A certificate of the fleet's own authority (TLS, always
// mutual): any certificate that the authority has issued is a member's, whatever name it
// bears, so the authority must issue them to the fleet alone. A secret that all members
// know, sent with each call: without TLS it crosses the network as it is. All files are
// read again when they change: certificates by the second, for connections that are made
// from then on; the secret at the next call.
//
// Owned by main, as a shared object because gRPC's servers and channels keep it.
// Any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/obs/log.h"
#include "common/rt/clock.h"
#include "grpcpp/grpcpp.h"

namespace flotilla::rpc {

struct CredentialsOptions {
  // PEM files: this process's certificate (and what is between it and the authority), its
  // key, and the fleet's authorities. All or none.
  std::string tls_cert, tls_key, tls_ca;
  std::string secret_file;                       // FleetSecret; empty: none
  absl::Duration look_every = absl::Seconds(1);  // at files that may have changed; whole seconds
  const Clock* clock = nullptr;                  // outlives it, as does the log
  Logger* log = nullptr;
};

class Credentials {
 public:
  // Errors name the file, and say what is wrong with it, or which flag is missing.
  static absl::StatusOr<std::shared_ptr<Credentials>> Create(const CredentialsOptions& options);
  virtual ~Credentials() = default;

  // False: neither proof is asked for.
  virtual bool protect() const = 0;
  // When the certificate ends that is in its file now. None: there is none, or it cannot be read.
  virtual std::optional<absl::Time> CertificateExpiry() const = 0;
  // The credentials of one server.
  virtual std::shared_ptr<grpc::ServerCredentials> ForServer() = 0;
  // A channel to `address` whose calls carry the proofs. It is logged when the peer
  // refuses them or cannot be reached: once, until it has answered.
  virtual std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address,
                                                   const grpc::ChannelArguments& arguments) = 0;
};

}  // namespace flotilla::rpc
