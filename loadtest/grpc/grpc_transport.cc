#include "loadtest/grpc/grpc_transport.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/client_callback.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "flotilla/v1/inference.grpc.pb.h"
#include "proto/codec/status.h"

namespace flotilla::loadtest {
namespace {

namespace asio = boost::asio;

// The exchanges that gRPC has not done with.
class LiveCount {
 public:
  void Add(int change) {
    absl::MutexLock lock(&mutex_);
    count_ += change;
  }
  void WaitForNone() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* count) { return *count == 0; }, &count_));
  }

 private:
  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

v1::GenerateRequest RequestOf(const RequestShape& shape, const std::vector<std::string>& said,
                              std::uint32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_model(shape.model);
  request.set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(static_cast<float>(shape.temperature));
  request.mutable_stop()->set_ignore_eos(shape.ignore_eos);
  if (shape.chat) {
    for (std::size_t i = 0; i < said.size(); ++i) {
      v1::ChatMessage& message = *request.mutable_chat()->add_messages();
      message.set_role(i % 2 == 0 ? "user" : "assistant");
      message.set_content(said[i]);
    }
  } else {
    request.set_text(absl::StrJoin(said, " "));
  }
  return request;
}

// One call. gRPC's threads call On...; all else runs on the thread of the io_context. The call
// holds a reference to itself until gRPC is done with it.
class GrpcExchange final : public Exchange,
                           public grpc::ClientReadReactor<v1::GenerateResponse>,
                           public std::enable_shared_from_this<GrpcExchange> {
 public:
  GrpcExchange(asio::io_context& io, LiveCount* live, ExchangeListener* listener,
               v1::GenerateRequest request)
      : io_(io), live_(live), listener_(listener), request_(std::move(request)) {}

  void Begin(v1::Inference::Stub& stub, const ServerOptions& options) {
    self_ = shared_from_this();
    live_->Add(1);
    context_.set_deadline(std::chrono::system_clock::now() +
                          std::chrono::nanoseconds(options.timeout_ns));
    if (!options.api_key.empty()) {
      context_.AddMetadata("authorization", "Bearer " + options.api_key);
    }
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void Cancel() override {
    listener_ = nullptr;
    context_.TryCancel();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    std::string text;
    for (const v1::Delta& delta : response_.deltas()) text += delta.text();
    if (response_.has_usage()) {
      usage_ = {.completion_tokens = response_.usage().output_tokens(),
                .prompt_tokens = response_.usage().prompt_tokens(),
                .cached_tokens = response_.usage().cached_tokens()};
    }
    if (!text.empty()) {
      asio::post(io_, [self = self_, text = std::move(text)] {
        if (self->listener_ != nullptr) self->listener_->OnText(text);
      });
    }
    response_.Clear();
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    LiveCount* const live = live_;
    asio::post(io_, [self = std::move(self_), status] { self->End(status); });
    live->Add(-1);
  }

 private:
  void End(const grpc::Status& status) {
    ExchangeListener* const listener = std::exchange(listener_, nullptr);
    if (listener == nullptr) return;
    if (status.ok()) return listener->OnFinished(usage_);
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return listener->OnFailed("timeout");
    }
    const std::string code =
        absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
    const std::string reason = PlainCode(codec::DetailsOf(status).reason);
    listener->OnFailed(absl::StrCat("gRPC ", code, reason.empty() ? "" : " ", reason));
  }

  asio::io_context& io_;
  LiveCount* const live_;
  ExchangeListener* listener_;  // null: the exchange has ended
  const v1::GenerateRequest request_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
  RequestUsage usage_;  // written before OnDone posts, read after
  std::shared_ptr<GrpcExchange> self_;
};

class GrpcTransport final : public Transport {
 public:
  explicit GrpcTransport(const ServerOptions& options) : options_(options) {}

  absl::Status Prepare(asio::io_context&) override {
    if (!options_.shape.extra.empty() || !options_.verify_tls || !options_.target.path.empty()) {
      return absl::InvalidArgumentError(
          "gRPC has no --extra-body, no --insecure-tls and no path in the address");
    }
    if (options_.keep_alive) {
      return absl::InvalidArgumentError(
          "gRPC has no --keep-alive, because it has one connection for all requests");
    }
    std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
    if (options_.target.tls) {
      grpc::SslCredentialsOptions tls;
      if (!options_.ca_file.empty()) {
        std::ostringstream text;
        std::ifstream file(options_.ca_file, std::ios::binary);
        text << file.rdbuf();
        tls.pem_root_certs = text.str();
        if (!file || tls.pem_root_certs.empty()) {
          return absl::InvalidArgumentError(absl::StrCat("cannot read ", options_.ca_file));
        }
      }
      credentials = grpc::SslCredentials(tls);
    }
    const ServerTarget& target = options_.target;
    const bool v6 = target.host.find(':') != std::string::npos;
    stub_ = v1::Inference::NewStub(grpc::CreateChannel(
        absl::StrCat(v6 ? "[" : "", target.host, v6 ? "]" : "", ":", target.port), credentials));
    return absl::OkStatus();
  }

  std::shared_ptr<Exchange> Start(asio::io_context& io, const std::vector<std::string>& said,
                                  std::uint32_t max_tokens, ExchangeListener* listener) override {
    auto exchange = std::make_shared<GrpcExchange>(io, &live_, listener,
                                                   RequestOf(options_.shape, said, max_tokens));
    exchange->Begin(*stub_, options_);
    return exchange;
  }

  void Drain() override { live_.WaitForNone(); }

 private:
  const ServerOptions options_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  LiveCount live_;
};

}  // namespace

std::unique_ptr<Transport> MakeGrpcTransport(const ServerOptions& options) {
  return std::make_unique<GrpcTransport>(options);
}

}  // namespace flotilla::loadtest
