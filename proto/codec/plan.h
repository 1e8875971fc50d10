// Converts a StepPlan to its message and back (worker.proto says how it is written).
//
// FromProto(ToProto(x)) == x for every plan without negative tokens, parameters that
// are NaN, and grants or copies of the null block; no plan has these. A message of a peer
// is judged without knowledge of the group: worker/core, which knows the group, checks
// that handles, blocks and tokens exist. Pure functions: any thread.
#pragma once

#include "absl/status/statusor.h"
#include "common/types/plan.h"
#include "flotilla/v1/worker.pb.h"

namespace flotilla::codec {

// `proto` is empty.
void ToProto(const StepPlan& plan, v1::StepPlan* proto);

// INVALID_ARGUMENT names the field. It means lists of unequal length, an unknown
// operation or enum value, a negative token, the null block, or a parameter that is not
// a number. Allocates in proportion to the message.
absl::StatusOr<StepPlan> FromProto(const v1::StepPlan& proto);

}  // namespace flotilla::codec
