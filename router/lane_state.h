// LaneState: what stands behind a Lane. The engine keeps it alive as an
// EventSink; it brings each step's events, as one posted batch, to the I/O
// thread and there to the generations. Internal to the router.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/types/engine.h"
#include "router/service.h"

namespace flotilla {

class GenerationImpl;

class LaneState final : public EventSink, public std::enable_shared_from_this<LaneState> {
 public:
  explicit LaneState(Dispatcher* dispatcher) : dispatcher_(dispatcher) {}

  // Engine's thread.
  void Post(std::vector<EngineEvent> events) override;

  // Runs `work` on the lane's thread, unless the lane is closed by then. Any
  // thread.
  void Run(std::function<void(LaneState&)> work);

  // Nothing reaches the dispatcher after this.
  void Close();

  // The lane's thread only, all of them. Generations are not owned.
  void Add(const RequestId& id, GenerationImpl* generation) { generations_[id] = generation; }
  void Remove(const RequestId& id) { generations_.erase(id); }
  GenerationImpl* Find(const RequestId& id) const;

 private:
  void Deliver(std::vector<EngineEvent> events);

  absl::Mutex mu_;
  Dispatcher* dispatcher_ ABSL_GUARDED_BY(mu_);  // null once closed
  absl::flat_hash_map<RequestId, GenerationImpl*> generations_;
};

// The handle that a front holds.
class LaneImpl final : public Lane {
 public:
  explicit LaneImpl(Dispatcher* dispatcher) : state_(std::make_shared<LaneState>(dispatcher)) {}
  ~LaneImpl() override { state_->Close(); }
  const std::shared_ptr<LaneState>& state() const { return state_; }

 private:
  std::shared_ptr<LaneState> state_;  // shared with the engine and posted work
};

}  // namespace flotilla
