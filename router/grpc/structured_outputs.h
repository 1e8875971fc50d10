// The constraint of a gRPC request. A pure function.
#pragma once

#include "absl/status/status.h"
#include "common/types/parameters.h"
#include "flotilla/v1/inference.pb.h"

namespace flotilla::router {

// Sets the constraint and the name of its field. INVALID_ARGUMENT names the field, and of a schema
// the place and the keyword.
absl::Status ReadConstraint(const v1::StructuredOutputs& outputs, RequestParameters& parameters);

}  // namespace flotilla::router
