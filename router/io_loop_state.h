// IoLoopState: the shared state behind an IoLoop. The engine keeps it alive as an
// EventSink. It posts each step's events as one batch to the I/O thread, and delivers
// them there to the generations. Internal to the router.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/types/engine.h"
#include "router/service.h"

namespace flotilla::router {

class GenerationImpl;

class IoLoopState final : public EventSink, public std::enable_shared_from_this<IoLoopState> {
 public:
  explicit IoLoopState(Dispatcher* dispatcher) : dispatcher_(dispatcher) {}

  // Engine's thread.
  void Post(std::vector<EngineEvent> events) override;

  // Runs `work` on the I/O loop's thread, unless the I/O loop is closed by then. May be
  // called on any thread.
  void Run(std::function<void(IoLoopState&)> work);

  // Nothing reaches the dispatcher after this.
  void Close();

  // These three are called only on the I/O loop's thread. Generations are not owned.
  void Add(const RequestId& id, GenerationImpl* generation) { generations_[id] = generation; }
  void Remove(const RequestId& id) { generations_.erase(id); }
  GenerationImpl* Find(const RequestId& id) const;

 private:
  void Deliver(std::vector<EngineEvent> events);

  absl::Mutex mu_;
  Dispatcher* dispatcher_ ABSL_GUARDED_BY(mu_);  // null once closed
  absl::flat_hash_map<RequestId, GenerationImpl*> generations_;
};

// The handle that a frontend holds.
class IoLoopImpl final : public IoLoop {
 public:
  explicit IoLoopImpl(Dispatcher* dispatcher) : state_(std::make_shared<IoLoopState>(dispatcher)) {}
  ~IoLoopImpl() override { state_->Close(); }
  const std::shared_ptr<IoLoopState>& state() const { return state_; }

 private:
  std::shared_ptr<IoLoopState> state_;  // shared with the engine and posted work
};

}  // namespace flotilla::router
