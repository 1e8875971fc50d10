// Converts between the public API's messages and the router's values.
//
// Only this code of the router reads or fills flotilla.v1 messages, apart from the classes of
// the gRPC service itself. Pure functions, which may be called on any thread. They check only
// the shape of what a client sends; the Validator checks ranges.
#pragma once

#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "flotilla/v1/inference.pb.h"
#include "grpcpp/support/status.h"
#include "router/generate_request.h"
#include "router/service.h"

namespace flotilla::router {

// Returns the bytes of a token; empty when unknown. They are valid while their source lives.
using TokenBytesFn = std::function<std::string_view(TokenId)>;

// INVALID_ARGUMENT, which names the field: there is no prompt, or an enum value is unknown, or
// there are more messages, stop strings or token ids than any model could take.
absl::StatusOr<ApiRequest> FromProto(const v1::GenerateRequest& request);

TokenizeRequest FromProto(const v1::TokenizeRequest& request);

// Writes the token with its alternatives as one position of the stream.
void ToProto(const SampledToken& token, const TokenBytesFn& bytes, v1::PositionLogprobs* position);

void ToProto(const ChoiceEnd& end, v1::Finish* finish);

void ToProto(const Usage& usage, v1::Usage* proto);

void ToProto(const ModelInfo& info, v1::GetModelInfoResponse* response);

// The status that ends a call, with the details that `status` carries.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace flotilla::router
