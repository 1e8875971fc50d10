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
#include "rpc/call_guard.h"

namespace flotilla {
namespace {

// Far above any context; keeps a message from being copied at eight times its
// size before it is refused.
constexpr int kMaxDetokenize = 1 << 20;

// The time the client allows, if it allows any limited time; at least 1 ms, as
// gRPC itself ends calls whose deadline has passed. More than the server allows
// is as much as it allows.
std::optional<std::int64_t> TimeoutMs(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return std::nullopt;
  const std::int64_t left = absl::ToInt64Milliseconds(absl::FromChrono(deadline) - absl::Now());
  return std::clamp<std::int64_t>(left, 1, RequestLimits().max_timeout_ms);
}

// Whoever's key it is; without keys, the last value of the tenant's metadata, as a
// gateway that adds its own comes last. UNAUTHENTICATED: a key that was taken away just
// now.
absl::StatusOr<std::string> Tenant(const grpc::CallbackServerContext& context,
                                   const GenerateStream::Shared& shared) {
  if (shared.gate != nullptr) {
    return shared.gate->Admit(rpc::AuthorizationOf(context.client_metadata()));
  }
  if (shared.tenant_metadata.empty()) return std::string();
  const auto [first, last] = context.client_metadata().equal_range(shared.tenant_metadata);
  if (first == last) return std::string();
  const grpc::string_ref value = std::prev(last)->second;
  return std::string(value.data(), value.size());
}

// Of the metadata; all zero where there is none that is valid.
TraceContext Trace(const grpc::CallbackServerContext& context) {
  const auto found = context.client_metadata().find("traceparent");
  if (found == context.client_metadata().end()) return {};
  return ParseTraceparent({found->second.data(), found->second.size()}).value_or(TraceContext());
}

}  // namespace

std::string InferenceGrpc::ModelName(const std::string& name) const {
  if (!name.empty()) return name;
  const std::vector<ModelInfo> models = shared_.service->Models();
  return models.size() == 1 ? models.front().limits.id : name;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceGrpc::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  auto call = FromProto(*request);
  if (call.ok()) {
    call->api.model = ModelName(call->api.model);
    call->api.timeout_ms = TimeoutMs(*context);
    absl::StatusOr<std::string> tenant = Tenant(*context, shared_);
    if (tenant.ok()) {
      call->api.tenant = *std::move(tenant);
      call->api.trace = Trace(*context);
    } else {
      call = tenant.status();
    }
  }
  return new GenerateStream(shared_, context, std::move(call));
}

grpc::ServerUnaryReactor* InferenceGrpc::Tokenize(grpc::CallbackServerContext* context,
                                                  const v1::TokenizeRequest* request,
                                                  v1::TokenizeResponse* response) {
  auto* reactor = context->DefaultReactor();
  TokenizeRequest tokenize = FromProto(*request);
  tokenize.model = ModelName(tokenize.model);
  shared_.thread->Post([this, reactor, response, tokenize = std::move(tokenize)]() mutable {
    shared_.service->Tokenize(std::move(tokenize), *shared_.lane,
                              [reactor, response](absl::StatusOr<std::vector<TokenId>> tokens) {
                                if (tokens.ok())
                                  response->mutable_token_ids()->Assign(tokens->begin(),
                                                                        tokens->end());
                                reactor->Finish(ToGrpcStatus(tokens.status()));
                              });
  });
  return reactor;
}

grpc::ServerUnaryReactor* InferenceGrpc::Detokenize(grpc::CallbackServerContext* context,
                                                    const v1::DetokenizeRequest* request,
                                                    v1::DetokenizeResponse* response) {
  auto* reactor = context->DefaultReactor();
  if (request->token_ids_size() > kMaxDetokenize) {
    reactor->Finish(ToGrpcStatus(
        InvalidField("token_ids", absl::StrCat("at most ", kMaxDetokenize, " tokens"))));
    return reactor;
  }
  std::vector<std::int64_t> tokens(request->token_ids().begin(), request->token_ids().end());
  shared_.thread->Post([this, reactor, response, model = ModelName(request->model()),
                        tokens = std::move(tokens)]() mutable {
    shared_.service->Detokenize(std::move(model), std::move(tokens), *shared_.lane,
                                [reactor, response](absl::StatusOr<std::string> text) {
                                  if (text.ok()) response->set_text(*std::move(text));
                                  reactor->Finish(ToGrpcStatus(text.status()));
                                });
  });
  return reactor;
}

grpc::ServerUnaryReactor* InferenceGrpc::GetModelInfo(grpc::CallbackServerContext* context,
                                                      const v1::GetModelInfoRequest* request,
                                                      v1::GetModelInfoResponse* response) {
  auto* reactor = context->DefaultReactor();
  const std::vector<ModelInfo> models = shared_.service->Models();
  const std::string name = ModelName(request->model());
  const auto found = std::ranges::find(models, name, [](const auto& m) { return m.limits.id; });
  if (found != models.end()) {
    ToProto(*found, response);
    reactor->Finish(grpc::Status::OK);
  } else if (models.empty()) {
    reactor->Finish(ToGrpcStatus(absl::UnavailableError("no model is loaded yet")));
  } else {
    reactor->Finish(ToGrpcStatus(
        WithField(absl::NotFoundError(absl::StrCat("the model '", name, "' is not served")),
                  "model", kModelNotFound)));
  }
  return reactor;
}

grpc::ServerUnaryReactor* InferenceGrpc::ListModels(grpc::CallbackServerContext* context,
                                                    const v1::ListModelsRequest*,
                                                    v1::ListModelsResponse* response) {
  for (const ModelInfo& model : shared_.service->Models()) response->add_models(model.limits.id);
  auto* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* InferenceGrpc::Abort(grpc::CallbackServerContext* context,
                                               const v1::AbortRequest* request,
                                               v1::AbortResponse* response) {
  response->set_found(shared_.service->Abort(request->id()));
  auto* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace flotilla
