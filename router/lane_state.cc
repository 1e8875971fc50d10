#include "router/lane_state.h"

#include <algorithm>
#include <utility>

#include "router/generation.h"

namespace flotilla {

void LaneState::Post(std::vector<EngineEvent> events) {
  Run([events = std::move(events)](LaneState& lane) mutable { lane.Deliver(std::move(events)); });
}

void LaneState::Run(std::function<void(LaneState&)> work) {
  absl::MutexLock lock(&mu_);
  if (dispatcher_ == nullptr) return;
  dispatcher_->Post([self = shared_from_this(), work = std::move(work)] {
    {
      absl::MutexLock relock(&self->mu_);
      if (self->dispatcher_ == nullptr) return;
    }
    work(*self);
  });
}

void LaneState::Close() {
  absl::MutexLock lock(&mu_);
  dispatcher_ = nullptr;
}

GenerationImpl* LaneState::Find(const RequestId& id) const {
  const auto it = generations_.find(id);
  return it == generations_.end() ? nullptr : it->second;
}

void LaneState::Deliver(std::vector<EngineEvent> events) {
  // A listener may destroy generations, so each is looked up when it is needed.
  std::vector<RequestId> touched;
  for (EngineEvent& event : events) {
    const RequestId id = EventKey(event).first;
    GenerationImpl* generation = Find(id);
    if (generation == nullptr) continue;
    if (touched.empty() || touched.back() != id) touched.push_back(id);
    generation->OnEvent(std::move(event));
  }
  for (const RequestId& id : touched) {
    if (GenerationImpl* generation = Find(id)) generation->Flush();
  }
}

}  // namespace flotilla
