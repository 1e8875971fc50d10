#include "router/remote/fleet.h"

#include <algorithm>
#include <iterator>
#include <variant>

#include "router/remote/remote_engine.h"

namespace flotilla::router {
namespace {

// How often the fleet checks whether held requests can be sent or were held too long. A replica
// that comes back gets them at once.
constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr std::int64_t kRetryAfterMs = 1000;

}  // namespace

// One scheduler: the connection to it, and the sink of all requests there.
class Fleet::Member final : public RemoteEngineObserver, public EventSink {
 public:
  Member(Fleet* fleet, ReplicaId id, const std::string& address)
      : fleet_(fleet),
        id_(id),
        address_(address),
        engine_({.address = address,
                 .retry = fleet->options_.retry,
                 .credentials = fleet->options_.credentials,
                 .poller = fleet->options_.poller},
                fleet->clock_, this) {}

  RemoteEngine& engine() { return engine_; }
  const std::string& address() const { return address_; }

  void OnAttached(const EngineDescription& description) override {
    fleet_->Run(
        [&](FleetCore& core) { core.OnAttached(fleet_->clock_->NowNs(), id_, description); });
    attached_ = true;
    if (fleet_->options_.on_attached) fleet_->options_.on_attached(address_, description);
  }
  void OnLoad(const EngineLoad& load) override {
    fleet_->Run([&](FleetCore& core) { core.OnLoad(fleet_->clock_->NowNs(), id_, load); });
  }
  void OnDetached(const absl::Status& why) override {
    fleet_->Run([&](FleetCore& core) { core.OnDetached(id_); });
    if (std::exchange(attached_, false) && fleet_->options_.on_lost) {
      fleet_->options_.on_lost(address_, why);
    }
  }
  void Post(std::vector<EngineEvent> events) override {
    fleet_->Run(
        [&](FleetCore& core) { core.OnEvents(fleet_->clock_->NowNs(), id_, std::move(events)); });
  }

 private:
  Fleet* const fleet_;
  const ReplicaId id_;
  const std::string address_;
  bool attached_ = false;  // of the observer's calls
  RemoteEngine engine_;    // last: its threads use the rest
};

Fleet::Fleet(FleetOptions options, const Clock* clock)
    : options_(std::move(options)), clock_(clock), core_(options_.core) {}

Fleet::~Fleet() { Stop(); }

void Fleet::SetAddresses(const std::vector<std::string>& addresses) {
  absl::MutexLock lock(&mu_);
  if (stopped_) return;
  std::vector<std::string> fresh = addresses;
  for (const auto& [id, member] : members_) {
    const auto at = std::find(fresh.begin(), fresh.end(), member->address());
    core_.SetLeaving(id, at == fresh.end());
    leaving_ |= at == fresh.end();
    if (at != fresh.end()) fresh.erase(at);
  }
  for (const std::string& address : fresh) {
    const ReplicaId id(next_replica_++);
    core_.AddReplica(id);
    const auto member = std::make_shared<Member>(this, id, address);
    members_.emplace(id, member);
    member->engine().Start();
  }
  thread_.Post([this] { RemoveLeft(); });
}

void Fleet::Stop() {
  std::map<ReplicaId, std::shared_ptr<Member>> members;
  Run([](FleetCore& core) { core.Stop(absl::UnavailableError("the router has stopped")); });
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    members = members_;
  }
  for (const auto& [id, member] : members) member->engine().Stop();
  Run([](FleetCore&) {});  // notifies those who wait for the last request
}

std::vector<std::string> Fleet::Models() const {
  absl::MutexLock lock(&mu_);
  std::vector<std::string> models;
  for (const FleetCore::Model& model : core_.models()) models.push_back(model.id);
  return models;
}

std::vector<FleetReplica> Fleet::Replicas() const {
  absl::MutexLock lock(&mu_);
  std::vector<FleetReplica> replicas;
  for (const auto& [id, member] : members_) replicas.push_back({member->address(), core_.View(id)});
  return replicas;
}

FleetCounters Fleet::Counters() const {
  absl::MutexLock lock(&mu_);
  return core_.counters();
}

absl::StatusOr<EngineDescription> Fleet::Describe(std::size_t model) const {
  absl::MutexLock lock(&mu_);
  return core_.Describe(model);
}

EngineLoad Fleet::Load(std::size_t model) const {
  absl::MutexLock lock(&mu_);
  return core_.Load(model);
}

absl::StatusOr<std::string> Fleet::TokenizerBytes(std::size_t model) const {
  std::vector<std::shared_ptr<Member>> members;
  {
    absl::MutexLock lock(&mu_);
    for (const ReplicaId id : core_.ReplicasOf(model)) {
      if (const auto at = members_.find(id); at != members_.end()) members.push_back(at->second);
    }
  }
  absl::StatusOr<std::string> bytes = absl::UnavailableError("no scheduler is there");
  for (const auto& member : members) {
    bytes = member->engine().TokenizerBytes();
    if (bytes.ok()) break;
  }
  return bytes;
}

void Fleet::DrainModel(std::optional<std::size_t> model, std::function<void()> done) {
  {
    absl::MutexLock lock(&mu_);
    drains_.emplace_back(model, std::move(done));
  }
  Run([&](FleetCore& core) { core.Drain(model); });
}

void Fleet::Run(absl::FunctionRef<void(FleetCore&)> change) {
  SinkBatches batches;
  std::vector<std::function<void()>> drained;
  {
    absl::MutexLock lock(&mu_);
    change(core_);
    Perform(batches);
    drained = TakeDrained();
    ArmTick();
    if (leaving_ && AnyLeft()) thread_.Post([this] { RemoveLeft(); });
  }
  batches.Post();
  for (const auto& done : drained) done();
}

void Fleet::Perform(SinkBatches& batches) {
  while (true) {
    FleetCore::Actions actions = core_.Take();
    if (actions.commands.empty() && actions.events.empty()) return;
    for (auto& [replica, command] : actions.commands) {
      const auto* request = std::get_if<TokenizedRequest>(&command);
      const std::optional<RequestEnd> refusal =
          request == nullptr
              ? std::nullopt
              : std::optional<RequestEnd>({.request = request->id,
                                           .attempt = request->attempt,
                                           .status = absl::UnavailableError("the scheduler left"),
                                           .retry_after_ms = kRetryAfterMs});
      if (Send(replica, std::move(command)) || !refusal.has_value()) continue;
      core_.OnEvents(clock_->NowNs(), replica, {*refusal});
    }
    for (auto& [sink, event] : actions.events) batches.Add(sink, std::move(event));
  }
}

bool Fleet::Send(ReplicaId replica, FleetCore::Command command) {
  const auto at = members_.find(replica);
  if (at == members_.end()) return false;
  RemoteEngine& engine = at->second->engine();
  if (const auto* cancel = std::get_if<CancelRequest>(&command)) {
    engine.Cancel(*cancel);
    return true;
  }
  return engine.TrySubmit(std::get<TokenizedRequest>(std::move(command)), at->second).ok();
}

std::vector<std::function<void()>> Fleet::TakeDrained() {
  std::vector<std::function<void()>> done;
  const auto left = std::partition(drains_.begin(), drains_.end(), [&](const auto& drain) {
    mu_.AssertHeld();
    return !core_.Drained(drain.first);
  });
  for (auto at = left; at != drains_.end(); ++at) done.push_back(std::move(at->second));
  drains_.erase(left, drains_.end());
  return done;
}

void Fleet::ArmTick() {
  if (ticking_ || stopped_ || !core_.waiting()) return;
  ticking_ = true;
  thread_.Post([this] { thread_.After(kTick, [this] { Tick(); }); });
}

bool Fleet::AnyLeft() const {
  return std::any_of(members_.begin(), members_.end(), [&](const auto& member) {
    mu_.AssertHeld();
    return core_.Removable(member.first);
  });
}

void Fleet::RemoveLeft() {
  std::map<ReplicaId, std::shared_ptr<Member>> left;
  {
    absl::MutexLock lock(&mu_);
    if (stopped_) return;
    for (auto at = members_.begin(); at != members_.end();) {
      const ReplicaId id = at->first;
      if (!core_.Removable(id)) {
        ++at;
        continue;
      }
      core_.OnDetached(id);  // nothing is sent there any more
      left.insert(members_.extract(at++));
    }
  }
  for (const auto& [id, member] : left) member->engine().Stop();
  absl::MutexLock lock(&mu_);
  for (const auto& [id, member] : left) core_.RemoveReplica(id);
}

void Fleet::Tick() {
  {
    absl::MutexLock lock(&mu_);
    ticking_ = false;
  }
  Run([this](FleetCore& core) { core.Tick(clock_->NowNs()); });
}

}  // namespace flotilla::router
