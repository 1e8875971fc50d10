#include "rpc/credentials.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/auth/pem.h"
#include "common/auth/watched_file.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "grpcpp/support/client_interceptor.h"
#include "rpc/call_guard.h"
#include "rpc/fleet_secret.h"

namespace flotilla::rpc {
namespace {

using grpc::experimental::InterceptionHookPoints;
using SecretFile = WatchedFile<FleetSecret>;

// Refusals are logged at most this often, so that callers without a proof cannot fill the log.
constexpr absl::Duration kLogEvery = absl::Seconds(10);

// Admits callers that know the secret.
class SecretGuard final : public CallGuard {
 public:
  SecretGuard(std::shared_ptr<SecretFile> secret, const Clock* clock, Logger* log)
      : secret_(std::move(secret)), clock_(clock), log_(log) {}

  grpc::Status Check(std::string_view, std::string_view authorization) override {
    if (secret_->Get()->Accepts(BearerToken(authorization))) return grpc::Status::OK;
    Log();
    return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "not a member of this fleet");
  }

 private:
  void Log() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    ++refused_;
    const std::int64_t now_ns = clock_->NowNs();
    if (now_ns < next_ns_) return;
    next_ns_ = now_ns + absl::ToInt64Nanoseconds(kLogEvery);
    log_->Warning("calls without this fleet's secret were refused", {{"calls", refused_}});
    refused_ = 0;
  }

  const std::shared_ptr<SecretFile> secret_;
  const Clock* const clock_;
  Logger* const log_;
  absl::Mutex mu_;
  std::int64_t refused_ ABSL_GUARDED_BY(mu_) = 0;  // not logged yet
  std::int64_t next_ns_ ABSL_GUARDED_BY(mu_) = 0;
};

// Records what was logged about each peer.
class PeerLog {
 public:
  explicit PeerLog(Logger* log) : log_(log) {}

  void Answered(const std::string& address) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    logged_.erase(address);
  }
  void Ended(const std::string& address, const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    const grpc::StatusCode code = status.error_code();
    const bool refused = code == grpc::StatusCode::UNAUTHENTICATED;
    if (!refused && code != grpc::StatusCode::UNAVAILABLE) return;
    {
      absl::MutexLock lock(&mu_);
      if (std::exchange(logged_[address], code) == code) return;
    }
    if (refused) {
      log_->Error("the peer refuses this process: is --fleet-secret-file the same?",
                  {{"peer", address}});
    } else {
      log_->Warning("the peer cannot be reached, or does not take this process's certificate",
                    {{"peer", address}, {"reason", status.error_message()}});
    }
  }

 private:
  Logger* const log_;
  absl::Mutex mu_;
  // The code logged last; OK: nothing. There is one entry per peer in the flags.
  std::map<std::string, grpc::StatusCode> logged_ ABSL_GUARDED_BY(mu_);
};

// Sends the secret with one call, and records whether the peer accepts it.
class ProofInterceptor final : public grpc::experimental::Interceptor {
 public:
  ProofInterceptor(SecretFile* secret, PeerLog* peers, const std::string& address)
      : secret_(secret), peers_(peers), address_(address) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* call) override {
    if (secret_ != nullptr &&
        call->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      call->GetSendInitialMetadata()->insert(
          {"authorization", absl::StrCat("Bearer ", secret_->Get()->first())});
    }
    if (call->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE) &&
        call->GetRecvMessage() != nullptr) {
      peers_->Answered(address_);
    }
    if (call->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_STATUS)) {
      peers_->Ended(address_, *call->GetRecvStatus());
    }
    call->Proceed();
  }

 private:
  SecretFile* const secret_;
  PeerLog* const peers_;
  const std::string& address_;
};

// Makes the interceptors of one channel, which owns it.
class ProofInterceptors final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  ProofInterceptors(std::shared_ptr<SecretFile> secret, std::shared_ptr<PeerLog> peers,
                    std::string address)
      : secret_(std::move(secret)), peers_(std::move(peers)), address_(std::move(address)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new ProofInterceptor(secret_.get(), peers_.get(), address_);
  }

 private:
  const std::shared_ptr<SecretFile> secret_;
  const std::shared_ptr<PeerLog> peers_;
  const std::string address_;
};

class CredentialsImpl final : public Credentials {
 public:
  explicit CredentialsImpl(const CredentialsOptions& options)
      : options_(options), peers_(std::make_shared<PeerLog>(options.log)) {}

  absl::Status Load() {
    if (tls()) {
      if (absl::Status status = CheckFiles(); !status.ok()) return status;
      certificates_ = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          options_.tls_key, options_.tls_cert, options_.tls_ca,
          static_cast<unsigned>(absl::ToInt64Seconds(options_.look_every)));
    }
    if (options_.secret_file.empty()) return absl::OkStatus();
    auto secret = SecretFile::Open({.path = options_.secret_file,
                                    .check_every = options_.look_every,
                                    .clock = options_.clock,
                                    .log = options_.log},
                                   &FleetSecret::Parse);
    if (!secret.ok()) return secret.status();
    secret_ = *std::move(secret);
    return absl::OkStatus();
  }

  bool protect() const override { return tls() || secret_ != nullptr; }

  std::optional<absl::Time> CertificateExpiry() const override {
    if (!tls()) return std::nullopt;
    const absl::StatusOr<std::string> certificate = ReadSecretFile(options_.tls_cert, nullptr);
    if (!certificate.ok()) return std::nullopt;
    return ExpiryOf(*certificate);
  }

  std::shared_ptr<grpc::ServerCredentials> ForServer() override {
    std::shared_ptr<CallGuard> guard;
    if (secret_ != nullptr) {
      guard = std::make_shared<SecretGuard>(secret_, options_.clock, options_.log);
    }
    if (!tls()) return Guarded(nullptr, std::move(guard));
    grpc::experimental::TlsServerCredentialsOptions tls_options(certificates_);
    Watch(tls_options);
    tls_options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    return Guarded(grpc::experimental::TlsServerCredentials(tls_options), std::move(guard));
  }

  std::shared_ptr<grpc::Channel> ConnectTo(const std::string& address,
                                           const grpc::ChannelArguments& arguments) override {
    std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
    if (tls()) {
      grpc::experimental::TlsChannelCredentialsOptions tls_options;
      tls_options.set_certificate_provider(certificates_);
      Watch(tls_options);
      // Any certificate of the authority is a member's, so chains are checked, but not names.
      tls_options.set_verify_server_certs(true);
      tls_options.set_check_call_host(false);
      credentials = grpc::experimental::TlsCredentials(tls_options);
    }
    std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> proofs;
    proofs.push_back(std::make_unique<ProofInterceptors>(secret_, peers_, address));
    return grpc::experimental::CreateCustomChannelWithInterceptors(address, credentials, arguments,
                                                                   std::move(proofs));
  }

 private:
  bool tls() const { return !options_.tls_ca.empty(); }

  void Watch(grpc::experimental::TlsCredentialsOptions& tls_options) {
    tls_options.watch_root_certs();
    tls_options.watch_identity_key_cert_pairs();
    tls_options.set_certificate_verifier(
        std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
  }

  // Checks that the files are usable now. gRPC checks later versions of them.
  absl::Status CheckFiles() {
    bool others_may_read = false;
    const absl::StatusOr<std::string> key = ReadSecretFile(options_.tls_key, &others_may_read);
    if (!key.ok()) return key.status();
    if (others_may_read) {
      options_.log->Warning("a private key can be read by everybody", {{"file", options_.tls_key}});
    }
    const absl::StatusOr<std::string> certificate = ReadSecretFile(options_.tls_cert, nullptr);
    if (!certificate.ok()) return certificate.status();
    const absl::StatusOr<std::string> authorities = ReadSecretFile(options_.tls_ca, nullptr);
    if (!authorities.ok()) return authorities.status();
    if (absl::Status status = CheckKeyPair(*certificate, *key, absl::Now()); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--tls-cert ", options_.tls_cert,
                                                     ", --tls-key ", options_.tls_key, ": ",
                                                     status.message()));
    }
    if (absl::Status status = CheckAuthorities(*authorities); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tls-ca ", options_.tls_ca, ": ", status.message()));
    }
    return absl::OkStatus();
  }

  const CredentialsOptions options_;
  const std::shared_ptr<PeerLog> peers_;
  std::shared_ptr<SecretFile> secret_;  // null: there is none
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> certificates_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Credentials>> Credentials::Create(
    const CredentialsOptions& options) {
  const bool any = !options.tls_cert.empty() || !options.tls_key.empty() || !options.tls_ca.empty();
  const bool all = !options.tls_cert.empty() && !options.tls_key.empty() && !options.tls_ca.empty();
  if (any && !all) {
    return absl::InvalidArgumentError("--tls-cert, --tls-key and --tls-ca go together");
  }
  auto credentials = std::make_shared<CredentialsImpl>(options);
  if (absl::Status status = credentials->Load(); !status.ok()) return status;
  return credentials;
}

}  // namespace flotilla::rpc
