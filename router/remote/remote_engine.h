// RemoteEngine: an Engine in another process, on one gRPC stream
// (flotilla.v1.Scheduler).
//
// When the stream breaks, RemoteEngine gives its accepted requests back (kMoved), so that their
// owners can submit them again, here or elsewhere, from the tokens that have come. It refuses
// requests that were not accepted yet. While the scheduler is away, it refuses all requests and
// tries to attach again. Fleet (fleet.h) joins several of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/rt/clock.h"
#include "common/rt/sink_batches.h"
#include "common/types/engine.h"
#include "rpc/reconnecting_client.h"

namespace flotilla::codec {
struct EngineUpdate;
}

namespace flotilla::router {

// Receives the state of a scheduler. It gets one call at a time, in order with the events, which
// their sinks receive on the same threads. RemoteEngine is not locked during a call.
class RemoteEngineObserver {
 public:
  virtual ~RemoteEngineObserver() = default;
  // The scheduler serves what `description` says. Called again when that has changed.
  virtual void OnAttached(const EngineDescription& description) = 0;
  // The load contains every request that was accepted before.
  virtual void OnLoad(const EngineLoad& load) = 0;
  // The stream broke, or could not be made. Called before the events that give requests back,
  // and not after Stop.
  virtual void OnDetached(const absl::Status& why) = 0;
};

class RemoteEngine final : public Engine {
 public:
  // `scheduler` is where the scheduler is. `clock` outlives it and is the clock of the requests'
  // deadlines. `observer` outlives it, too, and may be null.
  RemoteEngine(rpc::PeerOptions scheduler, const Clock* clock,
               RemoteEngineObserver* observer = nullptr);
  // Stops, unless stopped.
  ~RemoteEngine() override;

  // Called once, before all else. It is no failure if no scheduler answers yet.
  void Start();
  // Ends all running requests with UNAVAILABLE. No event comes after it returns. Not called
  // from a sink. Idempotent.
  void Stop();

  // UNAVAILABLE until the scheduler has a worker group.
  absl::StatusOr<EngineDescription> Describe() const override;
  void Submit(TokenizedRequest request, std::shared_ptr<EventSink> sink) override;
  // Like Submit, but a refusal that is known here is returned, and is not an event.
  absl::Status TrySubmit(TokenizedRequest request, std::shared_ptr<EventSink> sink)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel(const CancelRequest& cancel) override;
  // The load says that the scheduler is not ready while the stream is broken.
  EngineLoad Load() const override;
  // Asks the scheduler; 10 seconds at most.
  absl::StatusOr<std::string> TokenizerBytes() const override;
  // Drains this router's requests. The scheduler goes on serving other routers.
  void Drain(std::function<void()> done) override;

  // Why there is no scheduler now; OK: there is one, or nothing was tried yet.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Link;
  struct Entry {
    Attempt attempt;
    std::shared_ptr<EventSink> sink;
    bool accepted = false;
    std::vector<bool> ended;  // [sequences]
  };

  // Ends the sequences that have not ended, with `reason`.
  static void EndSequences(const RequestId& id, const Entry& entry, FinishReason reason,
                           SinkBatches& batches);

  // The link calls these, one at a time.
  void OnUpdate(codec::EngineUpdate update);
  void OnBroken(const absl::Status& why);
  // If all requests have ended, takes the callbacks that wait for this.
  std::vector<std::function<void()>> TakeDrained() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock* const clock_;
  RemoteEngineObserver* const observer_;
  const std::unique_ptr<Link> link_;

  mutable absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool attached_ ABSL_GUARDED_BY(mu_) = false;  // the stream has brought a description
  std::optional<EngineDescription> description_ ABSL_GUARDED_BY(mu_);  // the last
  EngineLoad load_ ABSL_GUARDED_BY(mu_);
  std::map<RequestId, Entry> requests_ ABSL_GUARDED_BY(mu_);  // not over
  std::vector<std::function<void()>> drained_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::router
