// The messages on the stream between a scheduler and the agent of a worker group, as
// values and as flotilla.v1 messages. One way go StepExecutor's calls; the other way go
// ExecutorListener's. Pure functions: any thread.
#pragma once

#include <variant>

#include "absl/status/statusor.h"
#include "common/types/executor.h"
#include "common/types/plan.h"
#include "flotilla/v1/worker.pb.h"

namespace flotilla::codec {

// StepExecutor::EndEpoch.
struct EndEpoch {
  Epoch epoch;

  bool operator==(const EndEpoch&) const = default;
};
using GroupCommand = std::variant<StepPlan, EndEpoch>;

// ExecutorListener::OnReady.
struct GroupReady {
  Epoch epoch;
  ExecutorDescription description;

  bool operator==(const GroupReady&) const = default;
};
using GroupEvent = std::variant<GroupReady, StepResult, Lost>;

// `proto` is empty.
void ToProto(const GroupCommand& command, v1::GroupCommand* proto);
void ToProto(const GroupEvent& event, v1::GroupEvent* proto);

// INVALID_ARGUMENT names the field. It means what it means for plans and results, or
// that the envelope holds no known message. scheduler/core judges whether a
// description makes sense.
absl::StatusOr<GroupCommand> FromProto(const v1::GroupCommand& proto);
absl::StatusOr<GroupEvent> FromProto(const v1::GroupEvent& proto);

}  // namespace flotilla::codec
