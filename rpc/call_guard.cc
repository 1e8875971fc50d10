#include "rpc/call_guard.h"

#include <iterator>
#include <string>
#include <utility>

#include "grpc/grpc.h"
#include "grpc/grpc_security.h"

namespace flotilla::rpc {
namespace {

constexpr char kPath[] = ":path";
constexpr char kAuthorization[] = "authorization";

std::string_view View(const grpc::string_ref& text) { return {text.data(), text.size()}; }
std::string_view View(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

// Calls a guard through gRPC's own interface for it, which encrypted ports have.
class Processor final : public grpc::AuthMetadataProcessor {
 public:
  explicit Processor(std::shared_ptr<CallGuard> guard) : guard_(std::move(guard)) {}
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata*,
                       OutputMetadata*) override {
    const auto path = metadata.find(kPath);
    return guard_->Check(path == metadata.end() ? std::string_view() : View(path->second),
                         AuthorizationOf(metadata));
  }

 private:
  const std::shared_ptr<CallGuard> guard_;
};

// The same through gRPC's C interface, for a plaintext port and for one whose certificate may
// change. The transport asks a guard on both; but grpc::InsecureServerCredentials takes none, and
// no class of grpc:: has certificates that are checked before they are used.
class CoreCredentials final : public grpc::ServerCredentials {
 public:
  // Either may be null: a plaintext port, and one that admits everybody.
  CoreCredentials(TlsFiles* files, std::shared_ptr<CallGuard> guard)
      : files_(files), guard_(std::move(guard)) {}
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  // Lives as long as gRPC has the credentials.
  struct State {
    TlsFiles* files;
    std::shared_ptr<CallGuard> guard;
    std::shared_ptr<const TlsIdentity> identity;  // the last one that gRPC got
  };

  int AddPortToServer(const std::string& address, grpc_server* server) override {
    auto* const state = new State{.files = files_, .guard = guard_, .identity = nullptr};
    grpc_server_credentials* credentials =
        files_ == nullptr ? grpc_insecure_server_credentials_create() : MakeTls(state);
    grpc_server_credentials_set_auth_metadata_processor(
        credentials, {.process = &Process,
                      .destroy = [](void* one) { delete static_cast<State*>(one); },
                      .state = state});
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);
    return port;
  }

  static grpc_server_credentials* MakeTls(State* state) {
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            state->files->asks_clients()
                ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            &FetchCertificate, state));
  }

  // Called before each handshake, one at a time.
  static grpc_ssl_certificate_config_reload_status FetchCertificate(
      void* state, grpc_ssl_server_certificate_config** config) {
    auto& [files, guard, identity] = *static_cast<State*>(state);
    std::shared_ptr<const TlsIdentity> now = files->Get();
    if (now == identity) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {.private_key = now->key.c_str(),
                                             .cert_chain = now->certificate.c_str()};
    // gRPC wants authorities even if it asks no client for a certificate.
    const std::string& authorities = files->asks_clients() ? now->authorities : now->certificate;
    *config = grpc_ssl_server_certificate_config_create(authorities.c_str(), &pair, 1);
    identity = std::move(now);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  static void Process(void* state, grpc_auth_context*, const grpc_metadata* metadata,
                      std::size_t count, grpc_process_auth_metadata_done_cb done,
                      void* done_argument) {
    CallGuard* const guard = static_cast<State*>(state)->guard.get();
    if (guard == nullptr) {
      return done(done_argument, nullptr, 0, nullptr, 0, GRPC_STATUS_OK, nullptr);
    }
    std::string_view path, authorization;
    bool twice = false;
    for (const grpc_metadata* one = metadata; one != metadata + count; ++one) {
      if (View(one->key) == kPath) path = View(one->value);
      if (View(one->key) != kAuthorization) continue;
      twice = twice || !authorization.empty();
      authorization = View(one->value);
    }
    const grpc::Status status = guard->Check(path, twice ? std::string_view() : authorization);
    done(done_argument, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.error_code()),
         status.error_message().c_str());
  }

  TlsFiles* const files_;
  const std::shared_ptr<CallGuard> guard_;
};

}  // namespace

std::string_view AuthorizationOf(
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  const auto [first, last] = metadata.equal_range(kAuthorization);
  if (first == last || std::next(first) != last) return {};
  return View(first->second);
}

std::shared_ptr<grpc::ServerCredentials> Guarded(std::shared_ptr<grpc::ServerCredentials> tls,
                                                 std::shared_ptr<CallGuard> guard) {
  if (tls == nullptr) {
    return guard == nullptr ? grpc::InsecureServerCredentials()
                            : std::make_shared<CoreCredentials>(nullptr, std::move(guard));
  }
  if (guard != nullptr) {
    tls->SetAuthMetadataProcessor(std::make_shared<Processor>(std::move(guard)));
  }
  return tls;
}

std::shared_ptr<grpc::ServerCredentials> GuardedPort(TlsFiles* files,
                                                     std::shared_ptr<CallGuard> guard) {
  if (files == nullptr) return Guarded(nullptr, std::move(guard));
  return std::make_shared<CoreCredentials>(files, std::move(guard));
}

}  // namespace flotilla::rpc
