// The constraint of a gRPC request. A pure function.
#pragma once

#include "absl/status/statusor.h"
#include "common/types/constraint.h"
#include "flotilla/v1/inference.pb.h"

namespace flotilla::router {

// INVALID_ARGUMENT names the field, and of a schema the place and the keyword.
absl::StatusOr<Constraint> FromProto(const v1::StructuredOutputs& outputs);

}  // namespace flotilla::router
