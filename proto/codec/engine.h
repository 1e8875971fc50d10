// What travels between a router and a scheduler: Engine's calls one way, its events,
// load and description the other, as values and as flotilla.v1 messages.
//
// FromProto(ToProto(x)) == x for every value without negative tokens and numbers that
// are none; a deadline keeps what is left of it. Whether a request can be served is
// for admission to judge. Pure functions: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/engine.h"
#include "flotilla/v1/scheduler.pb.h"

namespace flotilla {

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

// INVALID_ARGUMENT naming the field: lists of unequal length, a value of an enum or an
// event that is not known, a negative token, a log-probability or parameter that is no
// number. Allocates in proportion to the message.
absl::StatusOr<EngineCommand> FromProto(const v1::EngineCommand& proto, std::int64_t now_ns);
absl::StatusOr<EngineUpdate> FromProto(const v1::EngineUpdate& proto);

}  // namespace flotilla
