// StepResult on the wire, either way (worker.proto says how it is written).
//
// FromProto(ToProto(x)) == x for every result without negative tokens and without
// log-probabilities that are no numbers. Whether a result answers its plan is for
// scheduler/core to judge. Pure functions: any thread.
#pragma once

#include "absl/status/statusor.h"
#include "common/types/plan.h"
#include "flotilla/v1/worker.pb.h"

namespace flotilla {

// `proto` is empty.
void ToProto(const StepResult& result, v1::StepResult* proto);

// INVALID_ARGUMENT naming the field: lists of unequal length, a reason that is not
// known, a negative token, a log-probability that is no number. Allocates in
// proportion to the message.
absl::StatusOr<StepResult> FromProto(const v1::StepResult& proto);

}  // namespace flotilla
