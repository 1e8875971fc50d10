// StepPlan on the wire, either way (worker.proto says how it is written).
//
// FromProto(ToProto(x)) == x for every plan without negative tokens, parameters that
// are no numbers, and grants or copies of the null block, which no plan has. A peer's
// message is judged by itself: whether a handle, a block or a token exists is the
// business of worker/core, which knows the group. Pure functions: any thread.
#pragma once

#include "absl/status/statusor.h"
#include "common/types/plan.h"
#include "flotilla/v1/worker.pb.h"

namespace flotilla {

// `proto` is empty.
void ToProto(const StepPlan& plan, v1::StepPlan* proto);

// INVALID_ARGUMENT naming the field: lists of unequal length, an operation or a
// value of an enum that is not known, a negative token, the null block, a parameter
// that is no number. Allocates in proportion to the message.
absl::StatusOr<StepPlan> FromProto(const v1::StepPlan& proto);

}  // namespace flotilla
