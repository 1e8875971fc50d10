// The part of FleetCore that keeps the state of its replicas and reports it.
#include <algorithm>
#include <utility>

#include "router/core/fleet_core.h"

namespace flotilla::router {

bool FleetCore::Removable(ReplicaId id) const {
  const Replica& replica = replicas_.at(id);
  return replica.leaving && replica.live == 0;
}

void FleetCore::OnAttached(std::int64_t now_ns, ReplicaId id, EngineDescription description) {
  Replica& replica = replicas_.at(id);
  auto model = std::find_if(models_.begin(), models_.end(),
                            [&](const Model& m) { return m.id == description.model_id; });
  if (model == models_.end()) {
    model = models_.insert(
        models_.end(), {.id = description.model_id, .tokenizer_hash = description.tokenizer_hash});
  }
  replica.model = static_cast<std::size_t>(model - models_.begin());
  replica.usable = model->tokenizer_hash == description.tokenizer_hash;
  replica.description = std::move(description);
  if (!std::exchange(replica.attached, true)) replica.incarnation = ReplicaKey(++incarnations_);
  SendHeld(now_ns);
}

void FleetCore::OnDetached(ReplicaId id) {
  Replica& replica = replicas_.at(id);
  replica.attached = false;
  replica.incarnation = ReplicaKey(++incarnations_);
  replica.outstanding = {};
  replica.load = {};
  replica.no_worker_since_ns.reset();
}

void FleetCore::OnLoad(std::int64_t now_ns, ReplicaId id, const EngineLoad& load) {
  Replica& replica = replicas_.at(id);
  replica.load = load;
  if (load.ready) {
    replica.no_worker_since_ns.reset();
  } else if (!replica.no_worker_since_ns.has_value()) {
    replica.no_worker_since_ns = now_ns;
  }
  replica.outstanding.OnReport(load.outstanding_tokens);
}

absl::StatusOr<EngineDescription> FleetCore::Describe(std::size_t model) const {
  std::optional<EngineDescription> all;
  for (const auto& [id, replica] : replicas_) {
    if (!replica.description.has_value() || !replica.usable || replica.model != model) continue;
    const EngineDescription& one = *replica.description;
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
  for (const auto& [id, replica] : replicas_) {
    if (!replica.attached || !replica.usable || replica.model != model) continue;
    load.running_requests += replica.load.running_requests;
    load.waiting_requests += replica.load.waiting_requests;
    load.outstanding_tokens += replica.outstanding.total();
    load.blocks_total += replica.load.blocks_total;
    load.blocks_used += replica.load.blocks_used;
    load.ready |= replica.load.ready;
    open |= replica.load.ready && !replica.load.draining && !replica.leaving;
  }
  load.draining = draining_ || models_[model].draining || (load.ready && !open);
  return load;
}

std::vector<ReplicaId> FleetCore::ReplicasOf(std::size_t model) const {
  std::vector<ReplicaId> open, closing;
  for (const auto& [id, replica] : replicas_) {
    if (!replica.attached || !replica.usable || replica.model != model) continue;
    (replica.leaving || replica.load.draining || !replica.load.ready ? closing : open)
        .push_back(id);
  }
  open.insert(open.end(), closing.begin(), closing.end());
  return open;
}

FleetCore::ReplicaView FleetCore::View(ReplicaId id) const {
  const Replica& replica = replicas_.at(id);
  const bool up = replica.attached && replica.load.ready;
  return {.up = up,
          .open = up && !replica.leaving && !replica.load.draining,
          .usable = replica.usable,
          .outstanding_tokens = replica.outstanding.total(),
          .requests = replica.requests,
          .model_id = replica.description ? replica.description->model_id : std::string()};
}

}  // namespace flotilla::router
