// Fleet: the schedulers that a router knows, the connections to them, and their requests.
//
// FleetCore (router/core) makes the decisions. Fleet passes events to it and performs its
// actions, with a RemoteEngine per address, one lock around the core, and a thread for held
// requests. Replicas come and go with SetAddresses. The models are those that replicas say
// they serve. FleetEngine is one of these models as an Engine.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/rt/clock.h"
#include "common/rt/sink_batches.h"
#include "common/rt/task_thread.h"
#include "common/types/engine.h"
#include "router/core/fleet_core.h"
#include "rpc/credentials.h"
#include "rpc/poller.h"

namespace flotilla::router {

struct FleetOptions {
  std::shared_ptr<rpc::Credentials> credentials;  // shown to schedulers; null: none
  std::shared_ptr<rpc::Poller> poller;            // receives them; null: one for each stream
  // Between two attempts to attach to a scheduler.
  absl::Duration retry = absl::Milliseconds(200);
  FleetCoreOptions core;
  // Called when a scheduler has answered, or when what it serves has changed. Must not block,
  // nor call the fleet.
  std::function<void(const std::string& address, const EngineDescription&)> on_attached;
  // Called when a scheduler that had answered is gone. The same rules apply.
  std::function<void(const std::string& address, const absl::Status& why)> on_lost;
};

// One replica as metrics show it.
struct FleetReplica {
  std::string address;
  FleetCore::ReplicaView view;
};

class Fleet {
 public:
  // `clock` outlives it and is the one of the requests' deadlines.
  Fleet(FleetOptions options, const Clock* clock);
  // Stops, unless stopped.
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // Sets the addresses, host:port, of all schedulers from now on. One that is not among them any
  // more gets no new requests, and is disconnected when those that it has are over.
  void SetAddresses(const std::vector<std::string>& addresses) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all running requests with UNAVAILABLE. No event comes after it returns. Not called
  // from a sink. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);
  // Like Engine::Drain, for all models.
  void Drain(std::function<void()> done) { DrainModel(std::nullopt, std::move(done)); }

  // The models seen so far, in the order in which they were first seen. None is ever removed.
  std::vector<std::string> Models() const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<FleetReplica> Replicas() const ABSL_LOCKS_EXCLUDED(mu_);
  FleetCounters Counters() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class FleetEngine;
  class Member;

  // The methods of Engine for one model, which is an index of Models().
  absl::StatusOr<EngineDescription> Describe(std::size_t model) const ABSL_LOCKS_EXCLUDED(mu_);
  EngineLoad Load(std::size_t model) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::string> TokenizerBytes(std::size_t model) const ABSL_LOCKS_EXCLUDED(mu_);
  void DrainModel(std::optional<std::size_t> model, std::function<void()> done)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Applies `change` to the core, and performs the actions that result.
  void Run(absl::FunctionRef<void(FleetCore&)> change) ABSL_LOCKS_EXCLUDED(mu_);
  void Perform(SinkBatches& batches) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False: it could not be sent.
  bool Send(ReplicaId replica, FleetCore::Command command) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<std::function<void()>> TakeDrained() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ArmTick() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AnyLeft() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs on the thread.
  void Tick() ABSL_LOCKS_EXCLUDED(mu_);
  // Closes the connections of replicas that are not used any more.
  void RemoveLeft() ABSL_LOCKS_EXCLUDED(mu_);

  const FleetOptions options_;
  const Clock* const clock_;
  mutable absl::Mutex mu_;
  FleetCore core_ ABSL_GUARDED_BY(mu_);
  std::map<ReplicaId, std::shared_ptr<Member>> members_ ABSL_GUARDED_BY(mu_);
  std::uint64_t next_replica_ ABSL_GUARDED_BY(mu_) = 1;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool ticking_ ABSL_GUARDED_BY(mu_) = false;
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;  // some replica is leaving
  std::vector<std::pair<std::optional<std::size_t>, std::function<void()>>> drains_
      ABSL_GUARDED_BY(mu_);
  TaskThread thread_;  // last: its work uses the rest
};

}  // namespace flotilla::router
