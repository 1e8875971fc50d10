#include "router/grpc/inference_grpc.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/obs/trace.h"
#include "router/errors.h"
#include "router/grpc/codec.h"
#include "router/model_name.h"
#include "rpc/call_guard.h"

namespace flotilla::router {
namespace {

// This bound is far above any context. It keeps a message from being copied at eight times its
// size before it is refused.

// The time that the client allows, if it sets a limit. It is at least 1 ms, because gRPC itself
// ends calls whose deadline has passed, and at most what the server allows.
std::optional<std::int64_t> TimeoutMs(const grpc::ServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return std::nullopt;
  const std::int64_t left = absl::ToInt64Milliseconds(absl::FromChrono(deadline) - absl::Now());
  return std::clamp<std::int64_t>(left, 1, RequestLimits().max_timeout_ms);
}

// The owner of the call's key. Without keys, it is the last value of the tenant's metadata,
// because a gateway adds its own value last. UNAUTHENTICATED: the key was removed just now.
absl::StatusOr<KeyOwner> Caller(const grpc::ServerContext& context,
                                const GenerateStream::Shared& shared) {
  if (shared.gate != nullptr) {
    return shared.gate->Admit(rpc::AuthorizationOf(context.client_metadata()));
  }
  if (shared.tenant_metadata.empty()) return KeyOwner();
  const auto [first, last] = context.client_metadata().equal_range(shared.tenant_metadata);
  if (first == last) return KeyOwner();
  const grpc::string_ref value = std::prev(last)->second;
  return KeyOwner{.name = std::string(value.data(), value.size())};
}

// The trace context in the metadata; all zero if there is no valid one.
TraceContext Trace(const grpc::ServerContext& context) {
  const auto found = context.client_metadata().find("traceparent");
  if (found == context.client_metadata().end()) return {};
  return ParseTraceparent({found->second.data(), found->second.size()}).value_or(TraceContext());
}

}  // namespace

void InferenceGrpc::Attach(rpc::Server& server) {
  using M = InferenceMethods;
  server.OnWriter(&service_,
                  &M::RequestWriter<M::kGenerate, v1::GenerateRequest, v1::GenerateResponse>,
                  [this](auto call) { Generate(std::move(call)); });
  OnReadable<M::kTokenize, v1::TokenizeRequest, v1::TokenizeResponse>(
      server, [this](auto* call) { Tokenize(call); });
  OnReadable<M::kDetokenize, v1::DetokenizeRequest, v1::DetokenizeResponse>(
      server, [this](auto* call) { Detokenize(call); });
  OnReadable<M::kGetModelInfo, v1::GetModelInfoRequest, v1::GetModelInfoResponse>(
      server, [this](auto* call) { GetModelInfo(call); });
  OnReadable<M::kListModels, v1::ListModelsRequest, v1::ListModelsResponse>(
      server, [this](auto* call) {
        for (const ModelInfo& model : shared_.service->Models()) {
          call->response.add_models(model.limits.id);
        }
        call->Finish(grpc::Status::OK);
      });
  OnReadable<M::kAbort, v1::AbortRequest, v1::AbortResponse>(server, [this](auto* call) {
    call->response.set_found(shared_.service->Abort(call->request.message.id()));
    call->Finish(grpc::Status::OK);
  });
}

void InferenceGrpc::Generate(std::unique_ptr<GenerateStream::Call> call) {
  const absl::Status readable = call->request.status();
  auto generate =
      readable.ok() ? FromProto(call->request.message) : absl::StatusOr<ApiRequest>(readable);
  if (generate.ok()) {
    generate->timeout_ms = TimeoutMs(call->context);
    absl::StatusOr<KeyOwner> caller = Caller(call->context, shared_);
    if (caller.ok()) {
      generate->tenant = std::move(caller->name);
      generate->max_priority = caller->max_priority;
      generate->trace = Trace(call->context);
    } else {
      generate = caller.status();
    }
  }
  new GenerateStream(std::move(call), shared_, std::move(generate));  // owns itself
}

void InferenceGrpc::Tokenize(TokenizeCall* call) {
  absl::StatusOr<KeyOwner> caller = Caller(call->context, shared_);
  if (!caller.ok()) return call->Finish(ToGrpcStatus(caller.status()));
  TokenizeRequest tokenize = FromProto(call->request.message);
  tokenize.tenant = std::move(caller->name);
  shared_.thread->Post([this, call, tokenize = std::move(tokenize)]() mutable {
    shared_.service->Tokenize(
        std::move(tokenize), *shared_.io_loop, [call](absl::StatusOr<std::vector<TokenId>> tokens) {
          if (tokens.ok()) {
            call->response.mutable_token_ids()->Assign(tokens->begin(), tokens->end());
          }
          call->Finish(ToGrpcStatus(tokens.status()));
        });
  });
}

void InferenceGrpc::Detokenize(DetokenizeCall* call) {
  const v1::DetokenizeRequest& request = call->request.message;
  // This check comes before the ids are copied.
  if (request.token_ids_size() > static_cast<int>(kMaxDetokenize)) {
    return call->Finish(ToGrpcStatus(
        InvalidField("token_ids", absl::StrCat("at most ", kMaxDetokenize, " tokens"))));
  }
  absl::StatusOr<KeyOwner> caller = Caller(call->context, shared_);
  if (!caller.ok()) return call->Finish(ToGrpcStatus(caller.status()));
  DetokenizeRequest detokenize{.model = request.model(),
                               .tokens = {request.token_ids().begin(), request.token_ids().end()},
                               .tenant = std::move(caller->name),
                               .abandoned = nullptr};
  shared_.thread->Post([this, call, detokenize = std::move(detokenize)]() mutable {
    shared_.service->Detokenize(std::move(detokenize), *shared_.io_loop,
                                [call](absl::StatusOr<std::string> text) {
                                  if (text.ok()) call->response.set_text(*std::move(text));
                                  call->Finish(ToGrpcStatus(text.status()));
                                });
  });
}

void InferenceGrpc::GetModelInfo(ModelInfoCall* call) {
  const std::string& name = call->request.message.model();
  const std::vector<ModelInfo> models = shared_.service->Models();
  std::vector<std::string> served;
  for (const ModelInfo& model : models) served.push_back(model.limits.id);
  const std::string meant(ModelMeant(name, {served.begin(), served.end()}));
  for (const ModelInfo& model : models) {
    if (meant.empty() || model.limits.id != meant) continue;
    ToProto(model, &call->response);
    return call->Finish(grpc::Status::OK);
  }
  if (models.empty()) {
    return call->Finish(ToGrpcStatus(absl::UnavailableError("no model is loaded yet")));
  }
  call->Finish(ToGrpcStatus(NoSuchModel(name, std::move(served))));
}

}  // namespace flotilla::router
