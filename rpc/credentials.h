// Credentials: how a process of the fleet proves its membership, and checks that of others.
//
// There are two proofs; a fleet uses either or both:
// * A certificate of the fleet's own authority (TLS, always mutual). Any certificate that the
//   authority has issued proves membership, whatever its name, so the authority must issue
//   them to the fleet alone.
// * A secret that all members know, sent with each call. Without TLS it crosses the network in
//   plain text.
// All files are read again when they change. Changes of certificates are noticed within a
// second and apply to new connections; a new secret applies to the next call.
//
// Owned by main, as a shared object because gRPC's servers and channels keep it. May be used
// on any thread.
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
  // PEM files: this process's certificate (and the certificates between it and the authority),
  // its key, and the fleet's authorities. Either all are set or none.
  std::string tls_cert, tls_key, tls_ca;
  std::string secret_file;                       // FleetSecret; empty: none
  absl::Duration look_every = absl::Seconds(1);  // between checks of files; whole seconds
  const Clock* clock = nullptr;                  // outlives it, as does the log
  Logger* log = nullptr;
};

class Credentials {
 public:
  // Errors name the file and say what is wrong with it, or they say which flag is missing.
  static absl::StatusOr<std::shared_ptr<Credentials>> Create(const CredentialsOptions& options);
  virtual ~Credentials() = default;

  // False: neither proof is demanded.
  virtual bool protect() const = 0;
  // When the certificate that is in its file now expires. None: there is none, or it cannot be
  // read.
  virtual std::optional<absl::Time> CertificateExpiry() const = 0;
  // The credentials of one server.
  virtual std::shared_ptr<grpc::ServerCredentials> ForServer() = 0;
  // A channel to `address` whose calls carry the proofs. If the peer refuses them or cannot be
  // reached, this is logged once, until the peer has answered.
  virtual std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address,
                                                   const grpc::ChannelArguments& arguments) = 0;
};

}  // namespace flotilla::rpc
