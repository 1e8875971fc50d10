// What travels on the stream between a scheduler and the agent of a worker group:
// StepExecutor's calls one way, ExecutorListener's the other, as values and as
// flotilla.v1 messages. Pure functions: any thread.
#pragma once

#include <variant>

#include "absl/status/statusor.h"
#include "common/types/executor.h"
#include "common/types/plan.h"
#include "flotilla/v1/worker.pb.h"

namespace flotilla {

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

// INVALID_ARGUMENT naming the field: as for plans and results, and an envelope
// that holds nothing known. Whether a description makes sense is for
// scheduler/core to judge.
absl::StatusOr<GroupCommand> FromProto(const v1::GroupCommand& proto);
absl::StatusOr<GroupEvent> FromProto(const v1::GroupEvent& proto);

}  // namespace flotilla
