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

// The same for a plaintext port. The transport has that interface there as well; only
// grpc::InsecureServerCredentials does not, so this class replaces it.
class GuardedPlaintext final : public grpc::ServerCredentials {
 public:
  explicit GuardedPlaintext(std::shared_ptr<CallGuard> guard) : guard_(std::move(guard)) {}
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  using Shared = std::shared_ptr<CallGuard>;

  int AddPortToServer(const std::string& address, grpc_server* server) override {
    grpc_server_credentials* plaintext = grpc_insecure_server_credentials_create();
    grpc_server_credentials_set_auth_metadata_processor(
        plaintext, {.process = &Process,
                    .destroy = [](void* state) { delete static_cast<Shared*>(state); },
                    .state = new Shared(guard_)});
    const int port = grpc_server_add_http2_port(server, address.c_str(), plaintext);
    grpc_server_credentials_release(plaintext);
    return port;
  }

  static void Process(void* state, grpc_auth_context*, const grpc_metadata* metadata,
                      std::size_t count, grpc_process_auth_metadata_done_cb done,
                      void* done_argument) {
    std::string_view path, authorization;
    bool twice = false;
    for (const grpc_metadata* one = metadata; one != metadata + count; ++one) {
      if (View(one->key) == kPath) path = View(one->value);
      if (View(one->key) != kAuthorization) continue;
      twice = twice || !authorization.empty();
      authorization = View(one->value);
    }
    const grpc::Status status =
        (*static_cast<Shared*>(state))->Check(path, twice ? std::string_view() : authorization);
    done(done_argument, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.error_code()),
         status.error_message().c_str());
  }

  const Shared guard_;
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
                            : std::make_shared<GuardedPlaintext>(std::move(guard));
  }
  if (guard != nullptr) {
    tls->SetAuthMetadataProcessor(std::make_shared<Processor>(std::move(guard)));
  }
  return tls;
}

}  // namespace flotilla::rpc
