// The messages between the agent of a worker group and one of its ranks, as values and
// as bytes of flotilla.v1 messages. Pure functions: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/codec/group.h"

namespace flotilla::codec {

// StepRunner::BeginEpoch.
struct BeginEpoch {
  Epoch epoch;

  bool operator==(const BeginEpoch&) const = default;
};
using RankCommand = std::variant<StepPlan, BeginEpoch>;

// How a rank names itself.
struct RankHello {
  std::uint32_t rank = 0, size = 0;
  std::string token;      // only over TCP: the agent's token
  std::uint32_t pid = 0;  // only over TCP: the process id on the rank's host

  bool operator==(const RankHello&) const = default;
};
// What a rank is doing, with the fields of HeartbeatSlot. Only a rank that shares no memory
// with the agent sends it.
struct RankHeartbeat {
  std::uint32_t phase = 0;
  std::uint64_t epoch = 0, started_step = 0, done_step = 0;
  std::int64_t cpu_ns = 0, resident_bytes = 0;
  std::uint32_t load_phase = 0;  // this and the next are those of LoadProgress
  std::uint64_t loaded_bytes = 0, load_bytes = 0, load_moves = 0;

  bool operator==(const RankHeartbeat&) const = default;
};
// The model is loaded and warm.
struct RankLoaded {
  std::int64_t weight_bytes = 0, buffer_bytes = 0;
  std::string device, no_gpu, exchange, no_nccl, kv_memory;  // as RankDevice

  bool operator==(const RankLoaded&) const = default;
};
// The model cannot be loaded, for this reason.
struct RankRefused {
  absl::Status why;

  bool operator==(const RankRefused&) const = default;
};
// A GroupEvent that is Ready says that the epoch has begun.
using RankEvent = std::variant<RankHello, RankLoaded, RankRefused, GroupEvent, RankHeartbeat>;

std::string Encode(const RankCommand& command);
std::string Encode(const RankEvent& event);

// INVALID_ARGUMENT: the bytes are not such a message, or what it means for plans and group
// events.
absl::StatusOr<RankCommand> DecodeRankCommand(absl::string_view bytes);
absl::StatusOr<RankEvent> DecodeRankEvent(absl::string_view bytes);

}  // namespace flotilla::codec
