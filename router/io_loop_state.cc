#include "router/io_loop_state.h"

#include <algorithm>
#include <utility>

#include "router/generation.h"

namespace flotilla::router {

void IoLoopState::Post(std::vector<EngineEvent> events) {
  Run([events = std::move(events)](IoLoopState& io_loop) mutable {
    io_loop.Deliver(std::move(events));
  });
}

void IoLoopState::Run(std::function<void(IoLoopState&)> work) {
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

void IoLoopState::Close() {
  absl::MutexLock lock(&mu_);
  dispatcher_ = nullptr;
}

GenerationImpl* IoLoopState::Find(const RequestId& id) const {
  const auto it = generations_.find(id);
  return it == generations_.end() ? nullptr : it->second;
}

void IoLoopState::Deliver(std::vector<EngineEvent> events) {
  // A listener may destroy generations. So each is looked up again before it is used.
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

}  // namespace flotilla::router
