// FleetCore: decides which replica serves each request of a router, from submission to end.
//
// A request goes to one of the replicas that serve its model. If a replica refuses it before
// accepting it, it goes to another replica. If a replica gives it back (FinishReason::kMoved),
// its owner submits it again, from the tokens that have come. It then continues on a replica
// with the numerics id that it began with: at once if there is such a replica, else it is held
// for a while until there is one. If a replica has lost its worker group for a while, its
// requests are taken from it, if another replica could continue them. All events of one
// attempt that are delivered to an owner come from one replica.
//
// Pure: time is a value, and randomness is a seed. Take() returns the actions to perform.
// Owned by Fleet (router/remote), which has the connections and one lock around all this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/engine.h"
#include "router/core/prefix_map.h"
#include "router/core/replica_choice.h"

namespace flotilla::router {

// A replica as this router names it, from AddReplica to RemoveReplica.
using ReplicaId = StrongId<struct ReplicaIdTag, std::uint64_t>;

struct FleetCoreOptions {
  // The longest time that a request that was given back waits for a replica.
  std::int64_t hold_ns = 60'000'000'000;
  // How long a replica may be without its worker group before others continue its requests.
  std::int64_t move_after_ns = 10'000'000'000;
  std::uint64_t seed = 0;  // of the draws between replicas
};

// The outcome of a request that was given back.
enum class ReplayResult : std::uint8_t {
  kSent,        // to another replica, or the same, at once
  kResumed,     // once there was a replica again
  kExpired,     // none came back in time
  kImpossible,  // no replica is left that continues with equal bits
};
inline constexpr std::size_t kReplayResults = 4;

struct FleetCounters {
  // [0]: nothing was delivered before, [1]: it continued after delivered tokens.
  std::array<std::array<std::uint64_t, kReplayResults>, 2> replays{};
};

class FleetCore {
 public:
  explicit FleetCore(const FleetCoreOptions& options) : options_(options) {}

  // The actions to perform, in this order: commands to replicas, then events to owners.
  using Command = std::variant<TokenizedRequest, CancelRequest>;
  struct Actions {
    std::vector<std::pair<ReplicaId, Command>> commands;
    std::vector<std::pair<std::shared_ptr<EventSink>, EngineEvent>> events;
  };
  Actions Take() { return std::exchange(actions_, {}); }

  // A replica that may serve once it is attached. `replica` is new.
  void AddReplica(ReplicaId replica) { replicas_.try_emplace(replica); }
  // A leaving replica gets no new requests, and ends those that it has.
  void SetLeaving(ReplicaId replica, bool leaving) { replicas_.at(replica).leaving = leaving; }
  // True if the replica is leaving and has no requests.
  bool Removable(ReplicaId replica) const;
  void RemoveReplica(ReplicaId replica) { replicas_.erase(replica); }

  // The replica serves what `description` says. Called again when that changes.
  void OnAttached(std::int64_t now_ns, ReplicaId replica, EngineDescription description);
  // The replica is gone. The events that give its requests back follow.
  void OnDetached(ReplicaId replica);
  void OnLoad(std::int64_t now_ns, ReplicaId replica, const EngineLoad& load);

  // See Engine. `model` is an index of models().
  void Submit(std::int64_t now_ns, std::size_t model, TokenizedRequest request,
              std::shared_ptr<EventSink> sink);
  void Cancel(const CancelRequest& cancel);
  // The events of a replica, in its order. A command that could not be sent is reported here
  // too, as a refusal.
  void OnEvents(std::int64_t now_ns, ReplicaId replica, std::vector<EngineEvent> events);
  // Sends held requests if that is possible now, ends those that were held too long, and takes
  // requests back from replicas that wait for a worker group. To be called every now and then
  // while waiting() is true.
  void Tick(std::int64_t now_ns);
  bool waiting() const { return held_ > 0 || !moved_.empty() || AnyStuck(); }
  // Ends held requests with `status`, and refuses all new ones. Requests at replicas end as
  // the replicas report, and are sent nowhere else.
  void Stop(const absl::Status& status);

  // Refuses new requests of one model, or of all.
  void Drain(std::optional<std::size_t> model);
  // True if no request of the model is left, nor one that its owner is about to submit again.
  bool Drained(std::optional<std::size_t> model) const;

  // The models that replicas have served, in the order in which they were first seen. No model
  // is ever removed. A replica that has another tokenizer for the same id is not used.
  struct Model {
    std::string id;
    std::uint64_t tokenizer_hash = 0;
    bool draining = false;
  };
  const std::vector<Model>& models() const { return models_; }
  // The description that holds for every replica of the model, including those that are gone for
  // now.
  absl::StatusOr<EngineDescription> Describe(std::size_t model) const;
  // The load of all replicas of the model together.
  EngineLoad Load(std::size_t model) const;
  // The replicas that are attached. Those that take new requests come first.
  std::vector<ReplicaId> ReplicasOf(std::size_t model) const;

  struct ReplicaView {
    bool up = false;     // attached and ready
    bool open = false;   // up, and takes new requests
    bool usable = true;  // false: its tokenizer is not the model's
    std::uint64_t outstanding_tokens = 0;
    std::uint64_t requests = 0;  // sent there so far, replays included
    std::string model_id;        // empty until it is first attached
  };
  ReplicaView View(ReplicaId replica) const;
  const FleetCounters& counters() const { return counters_; }

 private:
  struct Replica {
    std::optional<EngineDescription> description;  // the last
    std::size_t model = 0;                         // of models_
    bool attached = false;
    bool usable = true;
    bool leaving = false;
    EngineLoad load;
    std::optional<std::int64_t> no_worker_since_ns;  // while it is attached
    ReplicaKey incarnation;
    OutstandingTokens outstanding;
    std::size_t live = 0;  // requests there
    std::uint64_t requests = 0;
  };
  struct Entry {
    Attempt attempt;
    std::size_t model = 0;
    std::shared_ptr<EventSink> sink;
    std::uint32_t sequences = 0;
    std::optional<ReplicaId> replica;  // none: held
    ReplicaKey incarnation;            // of the replica it was sent to
    std::uint64_t tokens = 0;          // still counted in the replica's OutstandingTokens
    std::uint64_t prefill = 0;         // those of the prompt, until the first token comes
    bool accepted = false;
    bool moved = false;
    // Kept until a replica accepts the request: the request to send elsewhere, and the cancels
    // to send after it.
    std::optional<TokenizedRequest> request;
    std::vector<CancelRequest> cancels;
    // The numerics id that a replay with tokens needs; 0: any.
    std::uint64_t numerics_id = 0;
    std::vector<ReplicaId> refused_by;
    std::optional<ReplicaId> taken_from;  // may still have it
    std::optional<RequestEnd> refusal;    // the one with the shortest wait
    std::optional<std::int64_t> held_until_ns;
    std::uint32_t crash_count = 0;  // of replicas that computed it alone
  };
  // A request that was given back, until its owner submits it again.
  struct Moved {
    std::size_t model = 0;
    std::uint64_t numerics_id = 0;
    std::int64_t until_ns = 0;  // how long it is expected
    bool expected = true;
    std::optional<ReplicaId> from;  // a replica that it was taken from, and may still have it
    std::uint32_t crash_count = 0;
  };
  using Requests = std::map<RequestId, Entry>;

  static constexpr int kUnusable = 3;
  // How well the replica fits the request; lower is better.
  int Tier(ReplicaId id, const Replica& replica, const Entry& entry) const;
  struct Choice {
    ReplicaId replica;
    PrefixMap::Chain chain;
    std::uint32_t overlap_tokens = 0;
  };
  std::optional<Choice> Choose(const Entry& entry);
  // Whether a known replica could continue the request, even one that is gone for now.
  bool Possible(const Entry& entry) const;
  // Sends, holds or refuses the request. Returns the iterator after it.
  Requests::iterator Route(std::int64_t now_ns, Requests::iterator at);
  void SendTo(const Choice& choice, Entry& entry);
  void CountAccepted(const Accepted& accepted, Entry& entry, Replica& replica);
  // The request has left the replica that it was sent to.
  void LeaveReplica(Entry& entry);
  // True: the request was sent elsewhere or is held, so the owner does not receive the refusal.
  bool TryElsewhere(std::int64_t now_ns, Requests::iterator at, const RequestEnd& end);
  void SendHeld(std::int64_t now_ns);
  // True if a replica waits for its worker group, and requests wait with it.
  bool AnyStuck() const;
  // True if another replica could continue the request now.
  bool HasBetter(const Entry& entry) const;
  void TakeStuck(std::int64_t now_ns);
  Requests::iterator TakeBack(std::int64_t now_ns, Requests::iterator at);
  Requests::iterator EndWith(Requests::iterator at, absl::Status status);
  // The request is at no replica, so it ends as an engine would end it.
  Requests::iterator EndHere(Requests::iterator at, FinishReason reason,
                             absl::Status status = absl::OkStatus());
  Requests::iterator Erase(Requests::iterator at);
  void CountReplay(const Entry& entry, ReplayResult result);
  std::uint64_t Random();

  const FleetCoreOptions options_;
  PrefixMap prefixes_;
  std::map<ReplicaId, Replica> replicas_;
  std::vector<Model> models_;
  Requests requests_;  // not over
  std::map<RequestId, Moved> moved_;
  std::size_t held_ = 0;  // of requests_
  // The outputs that replicas expect, in thousandths of those that requests may have, lately.
  std::uint64_t expected_permille_ = 1000;
  std::uint64_t draws_ = 0;
  std::uint64_t incarnations_ = 0;
  bool draining_ = false;
  absl::Status stopped_;  // OK: it has not
  FleetCounters counters_;
  Actions actions_;
};

}  // namespace flotilla::router
