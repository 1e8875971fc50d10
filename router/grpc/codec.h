// The public API's messages and the router's values, either way.
//
// The only code of the router that reads or fills flotilla.v1 messages, apart
// from the service that gRPC makes derive from them. Pure functions: any thread.
// What a client may send is judged here only as far as its shape goes; ranges
// are the Validator's business.
#pragma once

#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "flotilla/v1/inference.pb.h"
#include "grpcpp/support/status.h"
#include "router/generate_request.h"
#include "router/service.h"

namespace flotilla {

// The bytes of a token; empty when unknown. Valid while its source lives.
using TokenBytesFn = std::function<std::string_view(TokenId)>;

// What the request says beyond what the service needs to know.
struct GenerateCall {
  ApiRequest api;
  bool return_token_ids = false;
};

// INVALID_ARGUMENT naming the field: no prompt at all, more messages, stop
// strings or token ids than any model could take, or an unknown enum value.
absl::StatusOr<GenerateCall> FromProto(const v1::GenerateRequest& request);

TokenizeRequest FromProto(const v1::TokenizeRequest& request);

// The token with its alternatives, as one position of the stream.
void ToProto(const OutputToken& token, const TokenBytesFn& bytes, v1::PositionLogprobs* position);

void ToProto(const ChoiceEnd& end, v1::Finish* finish);

void ToProto(const Usage& usage, v1::Usage* proto);

void ToProto(const ModelInfo& info, v1::GetModelInfoResponse* response);

// The status that ends a call, with the details that `status` carries.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace flotilla
