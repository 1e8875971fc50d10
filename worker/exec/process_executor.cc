#include "worker/exec/process_executor.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "worker/core/blame.h"
#include "worker/core/merge_descriptions.h"
#include "worker/exec/rank_device.h"
#include "worker/group/directory.h"

namespace flotilla::worker {
namespace {

// The limit from the start of mpirun to the last rank's hello. This takes a fraction of a
// second, unless the machine is busy with other work.
constexpr std::int64_t kConnectLimitNs = 60'000'000'000;
constexpr int kStopGraceMs = 1000;

bool IsPermanent(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kResourceExhausted:
      return true;
    default:
      return false;
  }
}

const char* PhaseName(RankPhase phase) {
  switch (phase) {
    case RankPhase::kLoading:
      return "loading";
    case RankPhase::kWaiting:
      return "waiting";
    case RankPhase::kRunning:
      return "running";
    default:  // it may have written anything
      return "starting";
  }
}

Lost::Cause LostCause(Fault fault) {
  const bool died = fault == Fault::kDied || fault == Fault::kGarbage;
  return died ? Lost::Cause::kDied : Lost::Cause::kStuck;
}

}  // namespace

ProcessExecutor::ProcessExecutor(ProcessExecutorOptions options, const Clock* clock, Logger* log)
    : options_(std::move(options)), clock_(clock), log_(log), group_probe_(options_.group.ranks) {}

ProcessExecutor::~ProcessExecutor() { Stop(); }

absl::Status ProcessExecutor::Start(ExecutorListener* listener) {
  listener_ = listener;
  absl::MutexLock lock(&mu_);
  if (stopped_) return absl::CancelledError("stopped");
  thread_ = std::thread([this] { Loop(); });
  const auto decided = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ready_once_ || stopped_ || !refused_.ok();
  };
  mu_.Await(absl::Condition(&decided));
  if (!refused_.ok()) return refused_;
  return ready_once_ ? absl::OkStatus() : absl::CancelledError("stopped before it was ready");
}

absl::Status ProcessExecutor::Execute(StepPlan plan) {
  const Unanswered sent{.step = plan.step,
                        .sent_ns = clock_->NowNs(),
                        .predicted_ns = std::max<std::int64_t>(plan.predicted_ns, 0)};
  const codec::RankCommand command(std::move(plan));
  const std::string message = codec::Encode(command);
  absl::MutexLock lock(&mu_);
  const StepPlan& sent_plan = std::get<StepPlan>(command);
  if (stopped_ || epoch_ == Epoch{0} || sent_plan.epoch != epoch_) {
    return absl::FailedPreconditionError("not the current epoch");
  }
  if (unanswered_.size() > lag_) {
    return absl::ResourceExhaustedError("lag + 1 plans are unanswered");
  }
  if (message.size() > kMaxFrameBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a plan of ", message.size(), " bytes; ", kMaxFrameBytes, " are allowed"));
  }
  unanswered_.push_back(sent);
  NoteCopies(sent_plan);
  reachable_->Send(message);
  return absl::OkStatus();
}

// A step may have to wait for copies of its own plan and of earlier ones, which the
// scheduler does not count among the step's own time.
void ProcessExecutor::NoteCopies(const StepPlan& plan) {
  for (const PlanOp& op : plan.ops) {
    const auto* copy = std::get_if<BackgroundCopy>(&op);
    if (copy == nullptr || copy->tier >= tiers_.size()) continue;
    const KvTier& tier = tiers_[copy->tier];
    const std::int64_t per_block =
        copy->kind == BackgroundCopy::Kind::kOut ? tier.out_ns_per_block : tier.in_ns_per_block;
    copies_.push_back({.id = copy->id,
                       .predicted_ns = per_block * static_cast<std::int64_t>(copy->moves.size())});
  }
}

void ProcessExecutor::EndEpoch(Epoch epoch) {
  absl::MutexLock lock(&mu_);
  if (stopped_ || epoch_ == Epoch{0} || epoch != epoch_) return;
  epoch_ = Epoch{0};  // from here on plans of this epoch are refused
  ending_ = true;
  reachable_->Wake();
}

void ProcessExecutor::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    if (reachable_ != nullptr) reachable_->Wake();
  }
  absl::MutexLock one_at_a_time(&join_mu_);
  if (thread_.joinable()) thread_.join();
}

bool ProcessExecutor::Stopped() const {
  absl::MutexLock lock(&mu_);
  return stopped_;
}

bool ProcessExecutor::WaitToLaunch(int failures) {
  absl::MutexLock lock(&mu_);
  return !mu_.AwaitWithTimeout(absl::Condition(&stopped_),
                               absl::Nanoseconds(RestartDelayNs(failures)));
}

void ProcessExecutor::Loop() {
  RemoveStaleDirectories(options_.group.temporary);
  for (int failures = 0; WaitToLaunch(failures);) {
    const absl::Status ended = Live();
    failures = ended.ok() ? 0 : failures + 1;
    if (ended.ok()) continue;
    absl::MutexLock lock(&mu_);
    if (stopped_) return;
    // A group that was ready once may become ready again: the cause may be a file that was
    // replaced, or memory that another process took.
    if (!ready_once_ && IsPermanent(ended)) {
      refused_ = ended;
      return;
    }
    log_->Warning("worker group does not start", {{"attempt", failures}, {"error", ended}});
  }
}

absl::Status ProcessExecutor::Live() {
  auto group = RankGroup::Launch(options_.group);
  if (!group.ok()) return group.status();
  incarnation_ = Incarnation{.group = *std::move(group),
                             .watch = GroupWatch(options_.watch),
                             .launched_ns = clock_->NowNs()};
  incarnation_.beginning = {.since_ns = incarnation_.launched_ns, .limit_ns = kConnectLimitNs};
  incarnation_.loaded.resize(options_.group.ranks);
  incarnation_.begun.resize(options_.group.ranks);
  incarnation_.loading.resize(options_.group.ranks);
  incarnation_.cpu_ns.resize(options_.group.ranks);
  {
    absl::MutexLock lock(&mu_);
    reachable_ = incarnation_.group.get();
  }
  std::optional<End> end;
  while (!end.has_value()) end = Turn();
  TearDown(*end);
  {
    absl::MutexLock lock(&mu_);
    reachable_ = nullptr;
  }
  const bool was_ready = incarnation_.was_ready;
  incarnation_ = Incarnation{};  // and wipes the directory
  if (was_ready) return absl::OkStatus();
  return end->refused.ok() ? absl::UnavailableError(end->detail) : end->refused;
}

std::optional<ProcessExecutor::End> ProcessExecutor::Turn() {
  const std::int64_t left_ns =
      std::max<std::int64_t>(0, incarnation_.next_look_ns - clock_->NowNs());
  RankGroup::Received received =
      incarnation_.group->Wait(static_cast<int>((left_ns + 999'999) / 1'000'000));
  for (const RankGroup::Message& update : received.events) {
    if (std::optional<End> end = Take(update)) return end;
  }
  if (Stopped()) return End{};
  EndEpochAsAsked();
  const std::int64_t now = clock_->NowNs();
  if (!received.deaths && now < incarnation_.next_look_ns) return std::nullopt;
  incarnation_.next_look_ns = now + options_.watch.period_ns;
  ForwardLogs();
  return Look(now);
}

std::optional<ProcessExecutor::End> ProcessExecutor::Take(const RankGroup::Message& update) {
  const auto garbage = [&](absl::string_view what) {
    return End{.fault = Fault::kGarbage,
               .detail = absl::StrCat("rank ", update.rank, " (pid ",
                                      incarnation_.group->pid(update.rank), "): ", what)};
  };
  if (!update.event.ok()) return garbage(update.event.status().message());
  if (const auto* loaded = std::get_if<codec::RankLoaded>(&*update.event)) {
    incarnation_.loaded[update.rank] = *loaded;
    const auto has = [](const auto& one) { return one.has_value(); };
    if (incarnation_.stage == Stage::kStarting &&
        std::all_of(incarnation_.loaded.begin(), incarnation_.loaded.end(), has)) {
      BeginNextEpoch(0);
    }
    return std::nullopt;
  }
  if (const auto* refused = std::get_if<codec::RankRefused>(&*update.event)) {
    return End{.detail = std::string(refused->why.message()), .refused = refused->why};
  }
  if (const auto* event = std::get_if<codec::GroupEvent>(&*update.event)) {
    std::optional<End> end = TakeGroupEvent(update.rank, *event);
    if (end.has_value() && end->fault == Fault::kGarbage) return garbage(end->detail);
    return end;
  }
  return garbage("a second hello");
}

std::optional<ProcessExecutor::End> ProcessExecutor::TakeGroupEvent(
    int rank, const codec::GroupEvent& event) {
  if (const auto* result = std::get_if<StepResult>(&event)) return TakeResult(*result);
  if (const auto* lost = std::get_if<Lost>(&event)) {
    // The disk of this rank's tier failed. The other ranks do not know and wait for this rank.
    if (lost->cause == Lost::Cause::kDied && options_.group.ranks > 1) {
      return End{.fault = Fault::kDied,
                 .detail = absl::StrCat("rank ", rank, ": ", lost->detail),
                 .blames_requests = lost->blames_requests};
    }
    // Every rank finds the same fault in the same plan. Only the first report counts.
    if (incarnation_.stage == Stage::kReady && lost->epoch == last_epoch_) {
      BeginNextEpoch(LoseEpoch(lost->cause, lost->detail, Report::kNoSteps, lost->refused));
    }
    return std::nullopt;
  }
  const auto& ready = std::get<codec::GroupReady>(event);
  if (incarnation_.stage != Stage::kBeginning || ready.epoch != last_epoch_) return std::nullopt;
  incarnation_.begun[rank] = ready.description;
  return FinishBeginning();
}

std::optional<ProcessExecutor::End> ProcessExecutor::TakeResult(const StepResult& result) {
  // This result belongs to an epoch that has ended.
  if (incarnation_.stage != Stage::kReady || result.epoch != last_epoch_) return std::nullopt;
  {
    absl::MutexLock lock(&mu_);
    if (unanswered_.empty() || unanswered_.front().step != result.step) {
      return End{.fault = Fault::kGarbage,
                 .detail = absl::StrCat("a result of step ", result.step.value(),
                                        " that is not the next")};
    }
    unanswered_.pop_front();
    std::erase_if(copies_, [&](const Copy& copy) {
      return std::find(result.copies_done.begin(), result.copies_done.end(), copy.id) !=
             result.copies_done.end();
    });
    last_result_ns_ = clock_->NowNs();
  }
  probe_.OnStep(result.timings);
  listener_->OnResult(result);
  return std::nullopt;
}

void ProcessExecutor::BeginNextEpoch(std::int64_t outstanding_ns) {
  last_epoch_ = Epoch(last_epoch_.value() + 1);
  incarnation_.stage = Stage::kBeginning;
  incarnation_.begun.assign(options_.group.ranks, std::nullopt);
  incarnation_.beginning = {.since_ns = clock_->NowNs(), .limit_ns = StepLimitNs(outstanding_ns)};
  incarnation_.group->Send(codec::Encode(codec::RankCommand(codec::BeginEpoch{last_epoch_})));
}

std::optional<ProcessExecutor::End> ProcessExecutor::FinishBeginning() {
  std::vector<ExecutorDescription> descriptions;
  for (const auto& one : incarnation_.begun) {
    if (!one.has_value()) return std::nullopt;
    descriptions.push_back(*one);
  }
  const auto merged = MergeDescriptions(descriptions);
  if (!merged.ok()) {
    return End{.detail = std::string(merged.status().message()), .refused = merged.status()};
  }
  if (!incarnation_.was_ready) {
    std::string pids;
    std::int64_t weights = 0, buffers = 0;
    RankDevice device;
    for (int rank = 0; rank < options_.group.ranks; ++rank) {
      absl::StrAppend(&pids, rank == 0 ? "" : ",", incarnation_.group->pid(rank));
      weights += incarnation_.loaded[rank]->weight_bytes;
      buffers += incarnation_.loaded[rank]->buffer_bytes;
      const codec::RankLoaded& loaded = *incarnation_.loaded[rank];
      device.Add({loaded.device, loaded.no_gpu, loaded.exchange, loaded.no_nccl, loaded.kv_memory});
    }
    probe_.weight_bytes = weights;
    probe_.buffer_bytes = buffers;
    LogDevice(device, *log_);
    LogPool(device, *merged, *log_);
    probe_.OnLoaded(device, *merged);
    log_->Info(
        "worker group ready",
        {{"epoch", last_epoch_.value()},
         {"ranks", pids},
         {"mpirun", incarnation_.group->launcher_pid()},
         {"seconds",
          absl::StrFormat(
              "%.2f", static_cast<double>(clock_->NowNs() - incarnation_.launched_ns) * 1e-9)}});
  }
  incarnation_.stage = Stage::kReady;
  incarnation_.was_ready = true;
  std::vector<MemberSample> ranks = incarnation_.group->Ranks();
  NoteRanks(ranks);
  NoteLoading(clock_->NowNs(), &ranks);
  {
    absl::MutexLock lock(&mu_);
    epoch_ = last_epoch_;
    lag_ = merged->lag;
    tiers_ = merged->tiers;
    last_result_ns_ = 0;
    ready_once_ = true;
  }
  listener_->OnReady(last_epoch_, *merged);
  return std::nullopt;
}

void ProcessExecutor::EndEpochAsAsked() {
  {
    absl::MutexLock lock(&mu_);
    if (!std::exchange(ending_, false)) return;
  }
  // The epoch may have been lost for another reason in the meantime.
  if (incarnation_.stage != Stage::kReady) return;
  BeginNextEpoch(LoseEpoch(Lost::Cause::kDigest, "the scheduler refused a result of this epoch",
                           Report::kNoSteps));
}

std::int64_t ProcessExecutor::LoseEpoch(Lost::Cause cause, std::string detail, Report report,
                                        std::optional<Step> refused) {
  const bool with_started = report != Report::kNoSteps;
  Lost lost{.epoch = last_epoch_,
            .cause = cause,
            .detail = std::move(detail),
            .started = {},
            .blames_requests = report == Report::kBlamedSteps,
            .refused = refused};
  std::uint64_t started = 0;
  for (int rank = 0; with_started && rank < options_.group.ranks; ++rank) {
    const HeartbeatSlot& slot = incarnation_.group->slot(rank);
    if (slot.epoch == last_epoch_.value()) started = std::max(started, slot.started_step.load());
  }
  std::int64_t outstanding_ns = 0;
  {
    absl::MutexLock lock(&mu_);
    epoch_ = Epoch{0};
    ending_ = false;
    // A rank on another host may have begun a step and died before it could report the step.
    if (with_started && options_.group.hosts.has_value() && !unanswered_.empty()) {
      started = std::max(started, unanswered_.front().step.value());
    }
    for (const Unanswered& plan : unanswered_) {
      outstanding_ns += plan.predicted_ns;
      if (with_started && plan.step.value() <= started) lost.started.push_back(plan.step);
    }
    for (const Copy& copy : copies_) outstanding_ns += copy.predicted_ns;
    unanswered_.clear();
    copies_.clear();
  }
  ++probe_.epochs_lost;
  listener_->OnLost(lost);
  return outstanding_ns;
}

std::optional<WorkUnderway> ProcessExecutor::Underway(std::vector<MemberSample>* ranks) {
  const auto mark = [&](const auto& is_behind) {
    for (std::size_t i = 0; i < ranks->size(); ++i) {
      (*ranks)[i].behind = is_behind(static_cast<int>(i));
    }
  };
  switch (incarnation_.stage) {
    case Stage::kStarting:
      // Loading has no time limit, as long as every rank gets further (NoteLoading).
      if (incarnation_.group->all_connected()) return std::nullopt;
      mark([&](int rank) { return incarnation_.group->pid(rank) == 0; });
      return incarnation_.beginning;
    case Stage::kBeginning:
      mark([&](int rank) { return !incarnation_.begun[rank].has_value(); });
      return incarnation_.beginning;
    case Stage::kReady:
      break;
  }
  absl::MutexLock lock(&mu_);
  if (unanswered_.empty()) return std::nullopt;
  const Unanswered& oldest = unanswered_.front();
  mark([&](int rank) { return incarnation_.group->slot(rank).done_step < oldest.step.value(); });
  std::int64_t predicted_ns = oldest.predicted_ns;
  for (const Copy& copy : copies_) predicted_ns += copy.predicted_ns;
  return WorkUnderway{.since_ns = std::max(oldest.sent_ns, last_result_ns_),
                      .limit_ns = StepLimitNs(predicted_ns)};
}

std::optional<ProcessExecutor::End> ProcessExecutor::Look(std::int64_t now_ns) {
  const MemberSample launcher = incarnation_.group->Launcher();
  std::vector<MemberSample> ranks = incarnation_.group->Ranks();
  NoteRanks(ranks);
  NoteLoading(now_ns, &ranks);
  const auto work = Underway(&ranks);
  const Verdict verdict = incarnation_.watch.Judge(now_ns, launcher, ranks, work);
  if (!verdict.fault.has_value()) return std::nullopt;
  return End{.fault = verdict.fault, .detail = Describe(verdict)};
}

void ProcessExecutor::NoteRanks(const std::vector<MemberSample>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    GroupProbe::Rank& probe = group_probe_.ranks[rank];
    probe.up = incarnation_.group->pid(static_cast<int>(rank)) != 0;
    if (ranks[rank].heartbeat_ns.has_value()) probe.heartbeat_ns = *ranks[rank].heartbeat_ns;
  }
  NoteUsage();
}

// The CPU time of a rank's new process begins at 0, but the probe keeps counting up.
void ProcessExecutor::NoteUsage() {
  for (std::size_t rank = 0; rank < group_probe_.ranks.size(); ++rank) {
    const HeartbeatSlot& slot = incarnation_.group->slot(static_cast<int>(rank));
    const std::int64_t cpu_ns = std::max(incarnation_.cpu_ns[rank], slot.cpu_ns.load());
    group_probe_.ranks[rank].cpu_ns += cpu_ns - std::exchange(incarnation_.cpu_ns[rank], cpu_ns);
    group_probe_.ranks[rank].resident_bytes = slot.resident_bytes.load();
  }
}

void ProcessExecutor::NoteLoading(std::int64_t now_ns, std::vector<MemberSample>* ranks) {
  for (int rank = 0; rank < options_.group.ranks; ++rank) {
    const LoadProgress& load = incarnation_.group->slot(rank).load;
    GroupProbe::Rank& probe = group_probe_.ranks[rank];
    probe.loading = incarnation_.group->pid(rank) != 0 && !incarnation_.loaded[rank].has_value();
    probe.load_phase = load.phase.load();
    probe.loaded_bytes = load.loaded_bytes.load();
    probe.load_bytes = load.total_bytes.load();
    if (!probe.loading) continue;
    Loading& loading = incarnation_.loading[rank];
    // While it opens the file it only touches pages, which then are in its memory.
    const bool opens = probe.load_phase == LoadPhase::kOpen;
    const std::uint64_t moves =
        load.moves + (opens ? static_cast<std::uint64_t>(probe.resident_bytes.load()) : 0);
    if (moves != loading.moves || loading.moved_ns == 0) {
      loading = {.moves = moves, .moved_ns = now_ns};
    }
    (*ranks)[rank].moved_ns = loading.moved_ns;
    (*ranks)[rank].waits = WaitsForRanks(probe.load_phase);
  }
  if (incarnation_.stage != Stage::kStarting) return;
  if (const auto line = incarnation_.load_log.Next(now_ns, group_probe_)) {
    log_->Info("worker group loads", {{"rank", line->rank},
                                      {"phase", LoadPhaseName(line->phase)},
                                      {"loaded_mb", line->loaded_bytes / 1'000'000},
                                      {"of_mb", line->load_bytes / 1'000'000},
                                      {"mb_per_s", line->bytes_per_second / 1'000'000},
                                      {"seconds_left", line->seconds_left}});
  }
}

std::string ProcessExecutor::Describe(const Verdict& verdict) {
  if (verdict.fault == Fault::kDied) return incarnation_.group->ExitReport(verdict.member);
  const std::string who =
      verdict.member == Verdict::kLauncher
          ? absl::StrCat("mpirun (pid ", incarnation_.group->launcher_pid(), ")")
          : absl::StrCat("rank ", verdict.member, " (pid ", incarnation_.group->pid(verdict.member),
                         ")");
  std::string seconds = absl::StrFormat("%.1f s", static_cast<double>(verdict.age_ns) * 1e-9);
  if (verdict.member != Verdict::kLauncher) {
    const HeartbeatSlot& slot = incarnation_.group->slot(verdict.member);
    absl::StrAppend(&seconds, " (", PhaseName(slot.phase), ", step ", slot.started_step.load(),
                    ")");
  }
  switch (*verdict.fault) {
    case Fault::kStopped:
      return absl::StrCat(who, ": is stopped");
    case Fault::kSilent:
      return absl::StrCat(who, ": no heartbeat for ", seconds);
    case Fault::kStalled: {
      const LoadProgress& load = incarnation_.group->slot(verdict.member).load;
      return absl::StrCat(who, ": has got no further with loading for ", seconds, ", in phase ",
                          LoadPhaseName(load.phase), " with ", load.loaded_bytes.load(), " of ",
                          load.total_bytes.load(), " bytes");
    }
    default:
      return absl::StrCat(who, ": has not finished its work for ", seconds);
  }
}

void ProcessExecutor::TearDown(const End& end) {
  NoteUsage();
  for (GroupProbe::Rank& rank : group_probe_.ranks) {
    rank.up = false;
    rank.loading = false;
    rank.resident_bytes = 0;
  }
  if (!end.fault.has_value()) {
    {
      absl::MutexLock lock(&mu_);
      epoch_ = Epoch{0};
    }
    incarnation_.group->Close(kStopGraceMs);
    return;
  }
  ++group_probe_.restarts[static_cast<std::size_t>(*end.fault)];
  const std::int64_t detected_ns = clock_->NowNs();
  incarnation_.group->Kill();
  const bool blames =
      end.blames_requests.value_or(BlamesRequests(*end.fault, incarnation_.group->HowItEnded()));
  log_->Warning("worker group lost", {{"epoch", last_epoch_.value()},
                                      {"cause", FaultName(*end.fault)},
                                      {"detail", end.detail},
                                      {"blames", blames ? "requests" : "nobody"}});
  ForwardLogs();
  log_->Debug("worker group killed", {{"ms", (clock_->NowNs() - detected_ns) / 1'000'000}});
  // Results that ranks sent before their end still count.
  for (const RankGroup::Message& update : incarnation_.group->TakeRest().events) {
    if (update.event.ok() && std::holds_alternative<codec::GroupEvent>(*update.event)) {
      const auto& event = std::get<codec::GroupEvent>(*update.event);
      if (const auto* result = std::get_if<StepResult>(&event)) (void)TakeResult(*result);
    }
  }
  if (incarnation_.stage == Stage::kReady) {
    LoseEpoch(LostCause(*end.fault), end.detail, blames ? Report::kBlamedSteps : Report::kSteps);
  }
}

void ProcessExecutor::ForwardLogs() {
  for (const auto& [who, line] : incarnation_.group->TakeLogLines()) {
    log_->Info("printed", {{"by", who}, {"line", line}});
  }
}

}  // namespace flotilla::worker
