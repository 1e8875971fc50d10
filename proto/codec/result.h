// Converts a StepResult to its message and back (worker.proto says how it is written).
//
// FromProto(ToProto(x)) == x for every result without negative tokens and without
// log-probabilities that are NaN. scheduler/core judges whether a result answers its
// plan. Pure functions: any thread.
#pragma once

#include "absl/status/statusor.h"
#include "common/types/plan.h"
#include "flotilla/v1/worker.pb.h"

namespace flotilla::codec {

// `proto` is empty.
void ToProto(const StepResult& result, v1::StepResult* proto);

// INVALID_ARGUMENT names the field. It means lists of unequal length, an unknown
// reason, a negative token, or a log-probability that is not a number. Allocates in
// proportion to the message.
absl::StatusOr<StepResult> FromProto(const v1::StepResult& proto);

}  // namespace flotilla::codec
