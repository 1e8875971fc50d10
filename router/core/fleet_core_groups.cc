// What FleetCore knows of its groups, and says of them.
#include <algorithm>
#include <utility>

#include "router/core/fleet_core.h"

namespace flotilla {

bool FleetCore::Removable(GroupId id) const {
  const Group& group = groups_.at(id);
  return group.leaving && group.live == 0;
}

void FleetCore::OnAttached(std::int64_t now_ns, GroupId id, EngineDescription description) {
  Group& group = groups_.at(id);
  auto model = std::find_if(models_.begin(), models_.end(),
                            [&](const Model& m) { return m.id == description.model_id; });
  if (model == models_.end()) {
    model = models_.insert(
        models_.end(), {.id = description.model_id, .tokenizer_hash = description.tokenizer_hash});
  }
  group.model = static_cast<std::size_t>(model - models_.begin());
  group.usable = model->tokenizer_hash == description.tokenizer_hash;
  group.description = std::move(description);
  if (!std::exchange(group.attached, true)) group.life = GroupKey(++lives_);
  SendHeld(now_ns);
}

void FleetCore::OnDetached(GroupId id) {
  Group& group = groups_.at(id);
  group.attached = false;
  group.life = GroupKey(++lives_);
  group.outstanding = {};
  group.load = {};
  group.no_worker_since_ns.reset();
}

void FleetCore::OnLoad(std::int64_t now_ns, GroupId id, const EngineLoad& load) {
  Group& group = groups_.at(id);
  group.load = load;
  if (load.ready) {
    group.no_worker_since_ns.reset();
  } else if (!group.no_worker_since_ns.has_value()) {
    group.no_worker_since_ns = now_ns;
  }
  group.outstanding.OnReport(load.outstanding_tokens);
}

absl::StatusOr<EngineDescription> FleetCore::Describe(std::size_t model) const {
  std::optional<EngineDescription> all;
  for (const auto& [id, group] : groups_) {
    if (!group.description.has_value() || !group.usable || group.model != model) continue;
    const EngineDescription& one = *group.description;
    if (!all.has_value()) {
      all = one;
      continue;
    }
    if (one.exactness == Exactness::kConsistent) all->exactness = one.exactness;
    all->vocab_size = std::min(all->vocab_size, one.vocab_size);
    all->max_context = std::min(all->max_context, one.max_context);
    all->max_sequences = std::min(all->max_sequences, one.max_sequences);
    all->max_queue_tokens = std::min(all->max_queue_tokens, one.max_queue_tokens);
  }
  if (!all.has_value()) return absl::UnavailableError("no scheduler has answered yet");
  return *std::move(all);
}

EngineLoad FleetCore::Load(std::size_t model) const {
  EngineLoad load;
  bool open = false;
  for (const auto& [id, group] : groups_) {
    if (!group.attached || !group.usable || group.model != model) continue;
    load.running_requests += group.load.running_requests;
    load.waiting_requests += group.load.waiting_requests;
    load.outstanding_tokens += group.outstanding.total();
    load.blocks_total += group.load.blocks_total;
    load.blocks_used += group.load.blocks_used;
    load.ready |= group.load.ready;
    open |= group.load.ready && !group.load.draining && !group.leaving;
  }
  load.draining = draining_ || models_[model].draining || (load.ready && !open);
  return load;
}

std::vector<GroupId> FleetCore::GroupsOf(std::size_t model) const {
  std::vector<GroupId> open, closing;
  for (const auto& [id, group] : groups_) {
    if (!group.attached || !group.usable || group.model != model) continue;
    (group.leaving || group.load.draining || !group.load.ready ? closing : open).push_back(id);
  }
  open.insert(open.end(), closing.begin(), closing.end());
  return open;
}

FleetCore::GroupView FleetCore::View(GroupId id) const {
  const Group& group = groups_.at(id);
  const bool up = group.attached && group.load.ready;
  return {.up = up,
          .open = up && !group.leaving && !group.load.draining,
          .usable = group.usable,
          .outstanding_tokens = group.outstanding.total(),
          .requests = group.requests,
          .model_id = group.description ? group.description->model_id : std::string()};
}

}  // namespace flotilla
