// The messages between a router and a scheduler, as values and as flotilla.v1 messages.
// One way go Engine's calls; the other way go its events, load and description.
//
// FromProto(ToProto(x)) == x for every value without negative tokens and NaNs whose sampling
// parameters are in their ranges; a deadline keeps the time that is left. What a peer of an
// earlier version leaves out has its default. Admission judges whether a request can be served.
// Pure functions: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/engine.h"
#include "flotilla/v1/scheduler.pb.h"

namespace flotilla::codec {

using EngineCommand = std::variant<TokenizedRequest, CancelRequest>;

// The content of one message from a scheduler.
struct EngineUpdate {
  std::vector<EngineEvent> events;
  std::optional<EngineLoad> load;
  std::optional<EngineDescription> description;
};

// `proto` is empty. `now_ns`: the clock of the deadline in a request.
void ToProto(const EngineCommand& command, std::int64_t now_ns, v1::EngineCommand* proto);
void ToProto(const EngineUpdate& update, v1::EngineUpdate* proto);

// INVALID_ARGUMENT names the field. It means lists of unequal length, an unknown enum
// value or event, a negative token, or a log-probability or parameter that is not a
// number. Allocates in proportion to the message.
absl::StatusOr<EngineCommand> FromProto(const v1::EngineCommand& proto, std::int64_t now_ns);
absl::StatusOr<EngineUpdate> FromProto(const v1::EngineUpdate& proto);

}  // namespace flotilla::codec
