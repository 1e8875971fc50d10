#include "proto/codec/group.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/codec/columns.h"
#include "proto/codec/enums.h"
#include "proto/codec/plan.h"
#include "proto/codec/result.h"

namespace flotilla::codec {
namespace {

using columns::Wrong;
using enums::EnumPair;
using enums::FindDomain;
using enums::FindWire;

constexpr EnumPair<v1::KvGroup::Kind, KvGroup::Kind> kGroupKinds[] = {
    {v1::KvGroup::KIND_FULL, KvGroup::Kind::kFull},
    {v1::KvGroup::KIND_WINDOW, KvGroup::Kind::kWindow},
    {v1::KvGroup::KIND_STATE, KvGroup::Kind::kState},
};
constexpr EnumPair<v1::KvTier::Kind, KvTier::Kind> kTierKinds[] = {
    {v1::KvTier::KIND_HOST, KvTier::Kind::kHost},
    {v1::KvTier::KIND_DISK, KvTier::Kind::kDisk},
};
constexpr EnumPair<v1::ExecutorDescription::Exactness, Exactness> kExactness[] = {
    {v1::ExecutorDescription::EXACTNESS_BITWISE, Exactness::kBitwise},
    {v1::ExecutorDescription::EXACTNESS_CONSISTENT, Exactness::kConsistent},
};
constexpr EnumPair<v1::GroupLost::Cause, Lost::Cause> kCauses[] = {
    {v1::GroupLost::CAUSE_DIED, Lost::Cause::kDied},
    {v1::GroupLost::CAUSE_STUCK, Lost::Cause::kStuck},
    {v1::GroupLost::CAUSE_DIGEST, Lost::Cause::kDigest},
    {v1::GroupLost::CAUSE_INVALID_PLAN, Lost::Cause::kInvalidPlan},
    {v1::GroupLost::CAUSE_STOPPED, Lost::Cause::kStopped},
};

void ToProto(const ExecutorDescription& description, v1::ExecutorDescription* proto) {
  proto->set_model_id(description.model_id);
  proto->set_vocab_size(description.vocab_size);
  proto->set_max_context(description.max_context);
  proto->set_numerics_id(description.numerics_id);
  proto->set_exactness(FindWire(kExactness, description.exactness));
  for (const KvGroup& group : description.groups) {
    v1::KvGroup& entry = *proto->add_groups();
    entry.set_kind(FindWire(kGroupKinds, group.kind));
    entry.set_window(group.window);
    entry.set_tokens_per_block(group.tokens_per_block);
    entry.set_bytes_per_block(group.bytes_per_block);
  }
  proto->set_block_count(description.block_count);
  proto->set_run_tokens(description.run_tokens);
  for (const KvTier& tier : description.tiers) {
    v1::KvTier& entry = *proto->add_tiers();
    entry.set_kind(FindWire(kTierKinds, tier.kind));
    entry.set_block_count(tier.block_count);
    entry.set_out_ns_per_block(tier.out_ns_per_block);
    entry.set_in_ns_per_block(tier.in_ns_per_block);
  }
  proto->set_max_sequences(description.max_sequences);
  proto->set_max_step_tokens(description.max_step_tokens);
  proto->set_lag(description.lag);
  proto->set_max_draft_tokens(description.max_draft_tokens);
  proto->set_prefill_ns_per_token(description.prefill_ns_per_token);
  proto->set_decode_ns_per_step(description.decode_ns_per_step);
}

absl::StatusOr<ExecutorDescription> FromProto(const v1::ExecutorDescription& proto) {
  ExecutorDescription description{.model_id = proto.model_id(),
                                  .vocab_size = proto.vocab_size(),
                                  .max_context = proto.max_context(),
                                  .numerics_id = proto.numerics_id(),
                                  .exactness = {},
                                  .groups = {},
                                  .block_count = proto.block_count(),
                                  .run_tokens = proto.run_tokens(),
                                  .tiers = {},
                                  .max_sequences = proto.max_sequences(),
                                  .max_step_tokens = proto.max_step_tokens(),
                                  .lag = proto.lag(),
                                  .max_draft_tokens = proto.max_draft_tokens(),
                                  .prefill_ns_per_token = proto.prefill_ns_per_token(),
                                  .decode_ns_per_step = proto.decode_ns_per_step()};
  absl::Status s = FindDomain("ready.description.exactness", kExactness, proto.exactness(),
                              description.exactness);
  for (const v1::KvGroup& entry : proto.groups()) {
    KvGroup group{.kind = {},
                  .window = entry.window(),
                  .tokens_per_block = entry.tokens_per_block(),
                  .bytes_per_block = entry.bytes_per_block()};
    s.Update(FindDomain("ready.description.groups.kind", kGroupKinds, entry.kind(), group.kind));
    description.groups.push_back(group);
  }
  for (const v1::KvTier& entry : proto.tiers()) {
    KvTier tier{.kind = {},
                .block_count = entry.block_count(),
                .out_ns_per_block = entry.out_ns_per_block(),
                .in_ns_per_block = entry.in_ns_per_block()};
    s.Update(FindDomain("ready.description.tiers.kind", kTierKinds, entry.kind(), tier.kind));
    description.tiers.push_back(tier);
  }
  if (!s.ok()) return s;
  return description;
}

void ToProto(const Lost& lost, v1::GroupLost* proto) {
  proto->set_epoch(lost.epoch.value());
  proto->set_cause(FindWire(kCauses, lost.cause));
  proto->set_detail(lost.detail);
  for (const Step step : lost.started) proto->add_started(step.value());
  proto->set_blames_requests(lost.blames_requests);
  if (lost.refused.has_value()) proto->set_refused(lost.refused->value());
}

absl::StatusOr<Lost> FromProto(const v1::GroupLost& proto) {
  Lost lost{.epoch = Epoch(proto.epoch()),
            .cause = {},
            .detail = proto.detail(),
            .started = {},
            .refused = {}};
  if (absl::Status s = FindDomain("lost.cause", kCauses, proto.cause(), lost.cause); !s.ok()) {
    return s;
  }
  for (const std::uint64_t step : proto.started()) lost.started.emplace_back(step);
  lost.blames_requests = proto.blames_requests();
  if (proto.has_refused()) lost.refused = Step(proto.refused());
  return lost;
}

}  // namespace

void ToProto(const GroupCommand& command, v1::GroupCommand* proto) {
  if (const auto* plan = std::get_if<StepPlan>(&command)) {
    ToProto(*plan, proto->mutable_plan());
  } else {
    proto->set_end_epoch(std::get<EndEpoch>(command).epoch.value());
  }
}

absl::StatusOr<GroupCommand> FromProto(const v1::GroupCommand& proto) {
  switch (proto.command_case()) {
    case v1::GroupCommand::kPlan:
      return FromProto(proto.plan());
    case v1::GroupCommand::kEndEpoch:
      return EndEpoch{.epoch = Epoch(proto.end_epoch())};
    case v1::GroupCommand::COMMAND_NOT_SET:
      break;
  }
  return Wrong("command", "none that is known");
}

void ToProto(const GroupEvent& event, v1::GroupEvent* proto) {
  if (const auto* ready = std::get_if<GroupReady>(&event)) {
    proto->mutable_ready()->set_epoch(ready->epoch.value());
    ToProto(ready->description, proto->mutable_ready()->mutable_description());
  } else if (const auto* result = std::get_if<StepResult>(&event)) {
    ToProto(*result, proto->mutable_result());
  } else {
    ToProto(std::get<Lost>(event), proto->mutable_lost());
  }
}

absl::StatusOr<GroupEvent> FromProto(const v1::GroupEvent& proto) {
  switch (proto.event_case()) {
    case v1::GroupEvent::kReady: {
      absl::StatusOr<ExecutorDescription> description = FromProto(proto.ready().description());
      if (!description.ok()) return description.status();
      return GroupReady{.epoch = Epoch(proto.ready().epoch()),
                        .description = *std::move(description)};
    }
    case v1::GroupEvent::kResult:
      return FromProto(proto.result());
    case v1::GroupEvent::kLost:
      return FromProto(proto.lost());
    case v1::GroupEvent::EVENT_NOT_SET:
      break;
  }
  return Wrong("event", "none that is known");
}

}  // namespace flotilla::codec
