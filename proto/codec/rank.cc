#include "proto/codec/rank.h"

#include <utility>

#include "flotilla/v1/rank.pb.h"
#include "proto/codec/columns.h"
#include "proto/codec/plan.h"

namespace flotilla::codec {
namespace {

using columns::Wrong;

// Parses `bytes`; false if they are not such a message.
template <class Message>
bool Parse(absl::string_view bytes, Message* message) {
  return message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

}  // namespace

std::string Encode(const RankCommand& command) {
  v1::RankCommand proto;
  if (const auto* plan = std::get_if<StepPlan>(&command)) {
    ToProto(*plan, proto.mutable_plan());
  } else {
    proto.set_begin_epoch(std::get<BeginEpoch>(command).epoch.value());
  }
  return proto.SerializeAsString();
}

std::string Encode(const RankEvent& event) {
  v1::RankEvent proto;
  if (const auto* hello = std::get_if<RankHello>(&event)) {
    proto.mutable_hello()->set_rank(hello->rank);
    proto.mutable_hello()->set_size(hello->size);
    proto.mutable_hello()->set_token(hello->token);
    proto.mutable_hello()->set_pid(hello->pid);
  } else if (const auto* beat = std::get_if<RankHeartbeat>(&event)) {
    proto.mutable_heartbeat()->set_phase(beat->phase);
    proto.mutable_heartbeat()->set_epoch(beat->epoch);
    proto.mutable_heartbeat()->set_started_step(beat->started_step);
    proto.mutable_heartbeat()->set_done_step(beat->done_step);
    proto.mutable_heartbeat()->set_cpu_ns(beat->cpu_ns);
    proto.mutable_heartbeat()->set_resident_bytes(beat->resident_bytes);
    proto.mutable_heartbeat()->set_load_phase(beat->load_phase);
    proto.mutable_heartbeat()->set_loaded_bytes(beat->loaded_bytes);
    proto.mutable_heartbeat()->set_load_bytes(beat->load_bytes);
    proto.mutable_heartbeat()->set_load_moves(beat->load_moves);
  } else if (const auto* loaded = std::get_if<RankLoaded>(&event)) {
    proto.mutable_loaded()->set_weight_bytes(loaded->weight_bytes);
    proto.mutable_loaded()->set_buffer_bytes(loaded->buffer_bytes);
    proto.mutable_loaded()->set_device(loaded->device);
    proto.mutable_loaded()->set_no_gpu(loaded->no_gpu);
    proto.mutable_loaded()->set_exchange(loaded->exchange);
    proto.mutable_loaded()->set_no_nccl(loaded->no_nccl);
    proto.mutable_loaded()->set_kv_memory(loaded->kv_memory);
  } else if (const auto* refused = std::get_if<RankRefused>(&event)) {
    proto.mutable_refused()->set_code(static_cast<std::uint32_t>(refused->why.code()));
    proto.mutable_refused()->set_message(std::string(refused->why.message()));
  } else {
    ToProto(std::get<GroupEvent>(event), proto.mutable_group());
  }
  return proto.SerializeAsString();
}

absl::StatusOr<RankCommand> DecodeRankCommand(absl::string_view bytes) {
  v1::RankCommand proto;
  if (!Parse(bytes, &proto)) return Wrong("command", "no message");
  switch (proto.command_case()) {
    case v1::RankCommand::kPlan:
      return FromProto(proto.plan());
    case v1::RankCommand::kBeginEpoch:
      return BeginEpoch{.epoch = Epoch(proto.begin_epoch())};
    case v1::RankCommand::COMMAND_NOT_SET:
      break;
  }
  return Wrong("command", "none that is known");
}

absl::StatusOr<RankEvent> DecodeRankEvent(absl::string_view bytes) {
  v1::RankEvent proto;
  if (!Parse(bytes, &proto)) return Wrong("event", "no message");
  switch (proto.event_case()) {
    case v1::RankEvent::kHello:
      return RankHello{.rank = proto.hello().rank(),
                       .size = proto.hello().size(),
                       .token = proto.hello().token(),
                       .pid = proto.hello().pid()};
    case v1::RankEvent::kHeartbeat:
      return RankHeartbeat{.phase = proto.heartbeat().phase(),
                           .epoch = proto.heartbeat().epoch(),
                           .started_step = proto.heartbeat().started_step(),
                           .done_step = proto.heartbeat().done_step(),
                           .cpu_ns = proto.heartbeat().cpu_ns(),
                           .resident_bytes = proto.heartbeat().resident_bytes(),
                           .load_phase = proto.heartbeat().load_phase(),
                           .loaded_bytes = proto.heartbeat().loaded_bytes(),
                           .load_bytes = proto.heartbeat().load_bytes(),
                           .load_moves = proto.heartbeat().load_moves()};
    case v1::RankEvent::kLoaded:
      return RankLoaded{.weight_bytes = proto.loaded().weight_bytes(),
                        .buffer_bytes = proto.loaded().buffer_bytes(),
                        .device = proto.loaded().device(),
                        .no_gpu = proto.loaded().no_gpu(),
                        .exchange = proto.loaded().exchange(),
                        .no_nccl = proto.loaded().no_nccl(),
                        .kv_memory = proto.loaded().kv_memory()};
    case v1::RankEvent::kRefused: {
      const auto code = static_cast<absl::StatusCode>(proto.refused().code());
      if (code == absl::StatusCode::kOk) return Wrong("refused.code", "0");
      return RankRefused{.why = absl::Status(code, proto.refused().message())};
    }
    case v1::RankEvent::kGroup: {
      absl::StatusOr<GroupEvent> event = FromProto(proto.group());
      if (!event.ok()) return event.status();
      return *std::move(event);
    }
    case v1::RankEvent::EVENT_NOT_SET:
      break;
  }
  return Wrong("event", "none that is known");
}

}  // namespace flotilla::codec
