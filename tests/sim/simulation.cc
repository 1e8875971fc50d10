#include "tests/sim/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/core/admission.h"

namespace flotilla::testing {
namespace {

std::uint64_t Sum(const scheduler::CoreCounters& c) {
  return c.stopped + c.length + c.cancelled + c.expired + c.failed;
}

}  // namespace

Simulation::Simulation(std::uint64_t seed, Tiers tiers, bool runs)
    : random_(seed),
      fixed_tiers_(tiers),
      fatal_(~seed),
      blames_(MixBits(seed ^ 1) % 2 == 1),
      large_(tiers == Tiers::kOfSeed && MixBits(seed ^ 2) % 20 == 0),
      refuses_(MixBits(seed ^ 3) % 8 == 1),
      windows_(~MixBits(seed)),
      windowed_(tiers == Tiers::kOfSeed && MixBits(seed ^ 4) % 3 == 0),
      runs_(runs),
      constraints_(~MixBits(seed ^ 5)),
      constrains_(MixBits(seed ^ 5) % 4 == 1) {
  if (constrains_) options_.max_constraint_bytes = constraints_.OneIn(2) ? 3 : 7;
  coverage_.windowed += windowed_;
  options_.max_seqs = random_.Between(1, 12);
  options_.max_step_tokens = random_.Between(1, 48);
  options_.max_chunk_tokens = random_.Between(1, 48);
  options_.max_queued_requests = random_.Between(2, 12);
  options_.max_queued_tokens = random_.Between(40, 400);
  options_.watermark_blocks = random_.OneIn(2) ? 0 : random_.Between(1, 2);
  options_.expected_output_permille = random_.OneIn(2) ? 0 : random_.Between(1, 1000);
  options_.max_preemptions = random_.OneIn(8) ? random_.Below(3) : 3;
  options_.max_overtaken_rows = random_.OneIn(2) ? 0 : random_.Between(1, 400);
  options_.prefix_cache = !random_.OneIn(4);
  for (std::uint32_t i = random_.Below(4); i > 0; --i) {
    std::vector<TokenId>& opening = openings_.emplace_back();
    while (opening.size() < 64) opening.push_back(static_cast<TokenId>(random_.Below(kSimVocab)));
  }
  group_.lag = random_.Between(1, 3);
  group_.max_step_tokens = random_.Between(1, 64);
  group_.max_sequences = random_.Between(1, 14);
  tiers_ = random_.OneIn(2);
  wide_one_in_ = random_.OneIn(4) ? 0 : random_.Between(2, 8);
  prompt_bits_ = random_.Below(7);
  output_bits_ = random_.Between(2, 6);
  long_outputs_ = random_.OneIn(2);
  arrive_one_in_ = random_.Between(2, 24);
  cancel_one_in_ = random_.Between(10, 400);
  kill_one_in_ = random_.OneIn(3) ? 0 : random_.Between(100, 2000);
  plan_weight_ = random_.Between(1, 4);
  apply_weight_ = random_.Between(1, 4);
  complete_weight_ = random_.Between(1, 4);
  deliver_weight_ = random_.Between(1, 4);
  options_.max_draft_tokens = random_.OneIn(4) ? 0 : random_.Between(1, 6);
  group_.max_draft_tokens = random_.OneIn(8) ? 0 : random_.Between(1, 8);
  ngrams_.min_n = random_.Between(1, 2);
  ngrams_.max_n = random_.Between(2, 4);
  ++coverage_.lags[group_.lag];
  if (random_.OneIn(3)) options_.itl_target_ns = random_.Between(1, 60'000);
  if (random_.OneIn(4)) options_.max_wait_ns = random_.Between(1, 400'000);
  options_.fair_share = random_.OneIn(2);
  if (random_.OneIn(2)) options_.tenant_weights = {{"t", random_.Between(1, 5)}};
  const std::vector<absl::string_view> policies = scheduler::PolicyNames();
  const std::uint32_t policy = random_.Below(static_cast<std::uint32_t>(policies.size()));
  ++coverage_.policies[policy];
  if (large_) MakeLarge();
  if (fixed_tiers_ != Tiers::kOfSeed) options_.prefix_cache = true;
  core_.emplace(options_, scheduler::MakePolicy(policies[policy]));
  liveness_.emplace(options_, policies[policy],
                    [this](const RequestId& id) -> const SimClient& { return Find(id); });
}

// Prompts of up to 8,000 tokens, which take many steps, and beginnings in common that are as long.
void Simulation::MakeLarge() {
  ++coverage_.large;
  options_.max_step_tokens = random_.Between(64, 512);
  options_.max_chunk_tokens = random_.Between(32, 512);
  options_.max_queued_tokens = 60'000;
  options_.max_overtaken_rows = random_.OneIn(2) ? -1 : random_.Between(0, 4000);
  group_.max_step_tokens = 512;
  prompt_bits_ = 13;
  for (std::vector<TokenId>& opening : openings_) {
    while (opening.size() < 8192) opening.push_back(static_cast<TokenId>(random_.Below(kSimVocab)));
  }
}

ExecutorDescription Simulation::RandomGroup() {
  ExecutorDescription group = group_;
  group.tiers.clear();
  group.model_id = "sim";
  group.vocab_size = kSimVocab;
  group.max_context = large_ ? 9000 : 120;
  constexpr std::uint32_t kBlockTokens[] = {1, 2, 4, 16};
  group.groups = {KvGroup{.tokens_per_block = kBlockTokens[random_.Below(4)]}};
  if (random_.OneIn(4)) group.groups.push_back({.kind = KvGroup::Kind::kState});
  if (random_.OneIn(4)) group.groups.push_back({.tokens_per_block = 8});
  if (large_) group.groups = {KvGroup{.tokens_per_block = 16}};
  if (runs_) {
    group.groups.resize(1);
    group.run_tokens = group.groups[0].tokens_per_block;
  }
  const std::uint32_t tokens =
      large_ ? random_.Between(8'000, 40'000) : random_.Between(16, random_.OneIn(2) ? 80 : 240);
  group.block_count = 3 + tokens / group.groups[0].tokens_per_block;
  if (windowed_) AddWindows(group);
  if (fixed_tiers_ != Tiers::kOfSeed) {
    group.groups.resize(1);
    if (fixed_tiers_ == Tiers::kLarge) group.tiers = {{.block_count = 4000}};
  } else if (tiers_) {
    group.tiers.push_back({.block_count = random_.Between(1, 24) * (large_ ? 200 : 1),
                           .out_ns_per_block = random_.Below(1000),
                           .in_ns_per_block = random_.Below(1500)});
    if (random_.OneIn(2)) {
      group.tiers.push_back({.kind = KvTier::Kind::kDisk,
                             .block_count = random_.Between(1, 60),
                             .out_ns_per_block = random_.Below(2000),
                             .in_ns_per_block = random_.Below(3000)});
    }
  }
  group.prefill_ns_per_token = 1000;
  group.decode_ns_per_step = 5000;
  return group;
}

// Adds groups whose blocks are as large as those of the first one, as models have them. In half of
// the cases there are no others, so that there is a prefix cache.
void Simulation::AddWindows(ExecutorDescription& group) {
  if (windows_.OneIn(2)) group.groups.resize(1);
  const auto window = [&] { return windows_.Between(1, large_ ? 3000 : 60); };
  if (windows_.OneIn(4)) {
    group.groups[0].kind = KvGroup::Kind::kWindow;
    group.groups[0].window = window();
  }
  for (std::uint32_t more = windows_.Below(4); more > 0; --more) {
    group.groups.push_back({.kind = KvGroup::Kind::kWindow,
                            .window = window(),
                            .tokens_per_block = group.groups[0].tokens_per_block});
  }
  const auto groups = static_cast<std::uint32_t>(group.groups.size());
  group.block_count = std::max(group.block_count * windows_.Between(1, groups), 2 * groups + 1);
}

absl::Status Simulation::Run(std::uint64_t steps) {
  const std::uint64_t max_ticks = steps * 200;
  absl::Status status = ReviveGroup();
  while (status.ok() && coverage_.core.plans < steps) {
    if (++ticks_ > max_ticks) return Broken(7, "too few plans were made");
    status = Tick(/*arrivals=*/true);
    coverage_.core = core_->Snapshot().counters;
  }
  if (status.ok()) status = WindDown();
  coverage_.core = core_->Snapshot().counters;
  coverage_.steps = coverage_.core.plans;
  coverage_.liveness = liveness_->counts();
  coverage_.large_lookups = large_ ? coverage_.core.lookup_tokens : 0;
  coverage_.large_found = large_ ? coverage_.core.cached_tokens : 0;
  coverage_.windowed_found = windowed_ ? coverage_.core.cached_tokens : 0;
  coverage_.windowed_read = windowed_ ? coverage_.core.blocks_in : 0;
  if (status.ok()) return status;
  return absl::InternalError(absl::StrCat("tick ", ticks_, ": ", status.message()));
}

absl::Status Simulation::Tick(bool arrivals) {
  now_ns_ += random_.Below(1000);
  if (arrivals) {
    if (absl::Status s = Disturb(); !s.ok()) return s;
  }
  if (worker_ == nullptr && random_.OneIn(8)) return ReviveGroup();
  if (worker_ != nullptr && epoch_.value() > 1 && random_.OneIn(64)) return LateMessage();

  std::uint32_t pick =
      random_.Below(plan_weight_ + apply_weight_ + complete_weight_ + deliver_weight_);
  if (pick < plan_weight_) return MakePlan();
  pick -= plan_weight_;
  if (pick < apply_weight_) {
    return ApplyPlan();
  }
  pick -= apply_weight_;
  if (pick < complete_weight_) {
    if (worker_ == nullptr || !worker_->CanComplete()) return absl::OkStatus();
    if (worker_->IsFatal()) {
      Count(SimFault::kDiedOfRequest);
      KillGroup();
      return AfterEvent();
    }
    absl::StatusOr<SimResult> result = worker_->Complete(random_.Below(3));
    if (!result.ok()) return result.status();
    results_.push_back(*std::move(result));
    return CompareWithWorker();
  }
  return DeliverResult();
}

absl::Status Simulation::ApplyPlan() {
  if (worker_ == nullptr || plans_.empty() || !worker_->CanApply()) return absl::OkStatus();
  const StepPlan plan = std::move(plans_.front());
  plans_.pop_front();
  if (Refuses(plan)) {
    Count(SimFault::kPlanRefused);
    KillGroup(plan.step);
    return AfterEvent();
  }
  if (absl::Status s = worker_->Apply(plan); !s.ok()) return s;
  if (absl::Status s = CompareWithWorker(); !s.ok()) return s;
  if (!random_.OneIn(64)) return absl::OkStatus();
  Count(SimFault::kStepRefused);
  return worker_->Refuse(plan);
}

bool Simulation::Refuses(const StepPlan& plan) {
  bool refuses = false;
  for (const PlanOp& op : plan.ops) {
    const auto* open = std::get_if<OpenSequence>(&op);
    if (open == nullptr) continue;
    SimClient& client = clients_.at(open->request.counter);
    if (!client.refused()) continue;
    client.OnRefused();
    refuses = true;
  }
  return refuses;
}

// Makes one of the events that come from outside at any time.
absl::Status Simulation::Disturb() {
  const bool arrive = random_.OneIn(arrive_one_in_);
  if (arrive) Arrive(RandomRequest());
  const bool cancel = random_.OneIn(cancel_one_in_);
  if (cancel) CancelSome();
  const bool kill = kill_one_in_ > 0 && worker_ != nullptr && random_.OneIn(kill_one_in_);
  if (kill) KillGroup();
  return arrive || cancel || kill ? AfterEvent() : absl::OkStatus();
}

TokenizedRequest Simulation::RandomRequest() {
  TokenizedRequest request;
  request.id = {.incarnation = 7, .counter = next_id_++};
  request.attempt = Attempt(random_.OneIn(4) ? 1 : 0);
  const std::uint32_t prompt = random_.LogUniform(prompt_bits_);
  if (!openings_.empty() && !random_.OneIn(3)) {
    const auto& opening = openings_[random_.Below(static_cast<std::uint32_t>(openings_.size()))];
    request.prompt.assign(opening.begin(), opening.begin() + random_.Between(1, prompt));
  }
  while (request.prompt.size() < prompt) {
    request.prompt.push_back(static_cast<TokenId>(random_.Below(kSimVocab)));
  }
  if (random_.OneIn(3)) request.tenant = "t";
  if (random_.OneIn(3)) request.cache_salt = "t";
  request.sampling.seed = random_.Next();
  request.stop.max_tokens = random_.OneIn(16) ? 0
                            : long_outputs_   ? random_.Between(1, 1u << output_bits_)
                                              : random_.LogUniform(output_bits_);
  const auto stop = static_cast<TokenId>(random_.Below(kSimVocab));
  if (random_.OneIn(3)) request.stop.stop_tokens = {stop};
  if (random_.OneIn(4)) request.logprobs.prompt_top = 0;
  // A router gives each request a limit, as nearly all clients ask for no deadline.
  constexpr std::int64_t kLimitNs = 600'000'000'000;
  request.deadline_absent = !random_.OneIn(5);
  request.deadline_ns = now_ns_ + (request.deadline_absent ? kLimitNs : random_.Below(200'000));
  request.priority = static_cast<std::int32_t>(random_.Below(3));
  if (wide_one_in_ > 0 && random_.OneIn(wide_one_in_)) request.sequences = random_.Between(2, 5);
  if (wide_one_in_ > 0 && random_.OneIn(wide_one_in_)) {
    constexpr BeamOptions::EarlyStopping kEarly[] = {BeamOptions::EarlyStopping::kFalse,
                                                     BeamOptions::EarlyStopping::kTrue,
                                                     BeamOptions::EarlyStopping::kNever};
    request.beam = BeamOptions{.beams = request.sequences + random_.Below(3),
                               .length_penalty = random_.OneIn(2) ? 1.0f : 0.5f,
                               .early_stopping = kEarly[random_.Below(3)]};
    return request;
  }
  if (random_.OneIn(6)) {  // a replay of one that lost its scheduler
    for (std::uint32_t i = 0; i < request.sequences; ++i) {
      std::vector<TokenId>& prefix = request.output_prefix.emplace_back();
      const std::uint64_t seed = SequenceSeed(request.sampling.seed, SequenceIndex(i));
      const std::uint32_t size = random_.Below(request.stop.max_tokens + 1);
      const bool stops = !request.stop.stop_tokens.empty();
      while (prefix.size() < size && !(stops && !prefix.empty() && prefix.back() == stop)) {
        prefix.push_back(SimToken(seed, static_cast<std::uint32_t>(prefix.size())));
      }
    }
  }
  return request;
}

void Simulation::Arrive(TokenizedRequest request) {
  coverage_.replayed += !request.output_prefix.empty();
  coverage_.prompt_only += request.stop.max_tokens == 0;
  coverage_.parallel += !request.beam && request.sequences > 1;
  coverage_.beams += request.beam.has_value();
  if (constrains_ && constraints_.OneIn(2)) {
    request.sampling.constraint = {.kind = Constraint::Kind::kRegex, .text = "sim"};
  }
  // The request may have killed another group before.
  if (blames_ && !request.output_prefix.empty() && fatal_.OneIn(4)) request.crash_count = 1;
  live_.push_back(request.id.counter);
  SimClient& client = clients_.emplace(request.id.counter, SimClient(request)).first->second;
  if (blames_ && fatal_.OneIn(24)) {
    const auto positions = static_cast<std::uint32_t>(request.prompt.size());
    client.KillAt(fatal_.Below(positions + request.stop.max_tokens));
  }
  if (refuses_ && fatal_.OneIn(16)) client.Refuse();
  coverage_.arrived_quarantined += core_->Snapshot().quarantined > 0;
  if (request.crash_count > 0) {
    // The last fatal row may be that of a token that was lost with its group.
    const std::size_t known = request.prompt.size() + request.output_prefix.front().size() + 1;
    liveness_->NoteFatal(request.id, 0, static_cast<std::uint32_t>(known));
  }
  core_->Submit(now_ns_, std::move(request));
}

// Half of the time it cancels one sequence. If a sequence waits to be forked, it cancels the parent
// of the fork. The waiting sequence must then find the prompt in the prefix cache.
CancelRequest Simulation::RandomCancel() {
  const std::vector<scheduler::SequenceStatus> states = core_->SequenceStates();
  const auto pending =
      std::find_if(states.begin(), states.end(), [](const scheduler::SequenceStatus& sequence) {
        return sequence.state == scheduler::SequenceState::kPending;
      });
  if (pending != states.end() && random_.OneIn(2)) {
    const auto first =
        std::find_if(states.begin(), states.end(), [&](const scheduler::SequenceStatus& sequence) {
          return sequence.request == pending->request;
        });
    const SimClient& client = Find(pending->request);
    if (!client.request().beam) return {.request = first->request, .sequence = first->index};
  }
  const std::uint64_t id = live_[random_.Below(static_cast<std::uint32_t>(live_.size()))];
  const TokenizedRequest& request = clients_.at(id).request();
  CancelRequest cancel{.request = request.id, .sequence = {}};
  if (random_.OneIn(2)) cancel.sequence = SequenceIndex(random_.Below(request.sequences));
  return cancel;
}

void Simulation::CancelSome() {
  if (live_.empty()) return;
  CancelRequest cancel = RandomCancel();
  for (const scheduler::SequenceStatus& sequence : core_->SequenceStates()) {
    if (sequence.request != cancel.request) continue;
    ++coverage_.cancelled_in[static_cast<std::size_t>(sequence.state)];
    for (const SimResult& result : results_) {
      for (const SimSequenceMark& mark : result.marks) {
        Count(SimFault::kCancelAfterFinish, mark.finished && mark.request == sequence.request);
      }
    }
  }
  SimClient& client = clients_.at(cancel.request.counter);
  cancel.keep_tokens = client.Cancel(cancel.sequence, random_.Below(4));
  core_->Cancel(cancel);
}

absl::Status Simulation::MakePlan() {
  const scheduler::CoreSnapshot before = core_->Snapshot();
  const std::optional<RequestId> first = FirstOpen();
  liveness_->BeforePlan(states_, core_->OpenSequences());
  scheduler::PlanOutcome outcome = core_->Plan(now_ns_);
  for (const scheduler::Preemption& preemption : core_->TakePreemptions()) {
    liveness_->NotePreemption(preemption.victim);
  }
  if (before.in_flight > 0 &&
      core_->Snapshot().counters.preemptions > before.counters.preemptions) {
    return Broken(7, "preempted while results are on their way");
  }
  ++coverage_.stalls[static_cast<std::size_t>(outcome.stall)];
  // Pauses after refused plans are far longer than all else here.
  const bool paused = core_->Snapshot().candidates > 0 && outcome.wake_ns.has_value();
  if (paused && (outcome.stall == scheduler::StallReason::kHeldBack || fatal_.OneIn(64))) {
    now_ns_ = std::max(now_ns_, *outcome.wake_ns);
  }
  if (absl::Status s = CheckStall(outcome); !s.ok()) return s;
  if (absl::Status s = TakeEvents(); !s.ok()) return s;
  if (absl::Status s = CheckVictims(first); !s.ok()) return s;
  if (outcome.plan.has_value()) {
    TracePlan(*outcome.plan);
    plans_made_.Add(*outcome.plan);
    if (absl::Status s = CheckLiveness(*outcome.plan, before); !s.ok()) return s;
    for (const PlanOp& op : outcome.plan->ops) {
      if (const auto* copy = std::get_if<BackgroundCopy>(&op)) copying_.emplace(copy->id, *copy);
      if (const auto* release = std::get_if<ReleaseBlocks>(&op)) {
        coverage_.window_blocks += release->count;
      }
    }
    if (absl::Status s = CheckProgress(); !s.ok()) return s;
    Count(SimFault::kPlanToTheDead, worker_ == nullptr);
    if (worker_ != nullptr) plans_.push_back(*std::move(outcome.plan));
  }
  return AfterEvent();
}

absl::Status Simulation::DeliverResult() {
  if (stale_.has_value() && loss_sent_) {
    Count(worker_ == nullptr ? SimFault::kLateResult : SimFault::kLateResultNewEpoch);
    if (absl::Status s = core_->Apply(*std::exchange(stale_, std::nullopt)); !s.ok()) return s;
    return AfterEvent();
  }
  if (results_.empty()) return absl::OkStatus();
  const SimResult result = std::move(results_.front());
  results_.pop_front();
  if (absl::Status s = core_->Apply(result.result); !s.ok()) return s;
  for (const std::uint64_t id : result.result.copies_done) copying_.erase(id);
  if (absl::Status s = CompareMarks(result); !s.ok()) return s;
  return AfterEvent();
}

void Simulation::KillGroup(std::optional<Step> refused) {
  for (const scheduler::SequenceStatus& sequence : core_->SequenceStates()) {
    ++coverage_.lost_in[static_cast<std::size_t>(sequence.state)];
  }
  const bool sent = !plans_.empty(), running = worker_->CanComplete(), done = !results_.empty();
  Count(SimFault::kDiedIdle, core_->OpenSequences().empty());
  Count(SimFault::kDiedPlanSent, sent);
  Count(SimFault::kDiedStepRunning, running);
  Count(SimFault::kDiedResultSent, done);
  Count(SimFault::kDiedInAllPhases, sent && running && done);
  started_.clear();
  fatal_rows_.clear();
  results_lost_ = false;
  refused_ = refused;
  if (blames_ && !refused.has_value()) NoteUnderWay();
  worker_.reset();
  if (sent) stale_plan_ = std::move(plans_.back());
  plans_.clear();
  loss_sent_ = false;
  if (done && random_.OneIn(2)) {  // it is lost on the way, or comes too late
    stale_ = results_.back().result;
    results_lost_ = true;
    results_.clear();
  }
}

void Simulation::NoteUnderWay() {
  started_ = worker_->Started();
  fatal_rows_ = worker_->RowsUnderWay();
  std::vector<SimClient*> under_way;
  for (const RequestId& id : worker_->UnderWay()) {
    SimClient& client = clients_.at(id.counter);
    if (!client.ended()) under_way.push_back(&client);
  }
  for (SimClient* client : under_way) client->OnGroupDied(under_way.size() == 1);
}

absl::Status Simulation::ReviveGroup() {
  if (loss_sent_) return NextGroup();
  if (random_.OneIn(4)) {
    Count(SimFault::kLossNotSent);
    if (!results_.empty()) stale_ = results_.front().result;
    results_.clear();
    loss_sent_ = true;
    return NextGroup();
  }
  if (!results_.empty()) return DeliverResult();  // those came before the loss
  if (refused_.has_value()) {
    core_->PlanRefused(now_ns_, epoch_, refused_, "the simulation refuses it");
  } else {
    ReportLoss();
  }
  loss_sent_ = true;
  return AfterEvent();
}

void Simulation::ReportLoss() {
  core_->Lost(epoch_, started_);
  std::map<RequestId, SimWorker::Rows> fatal;  // in several steps of a pipeline
  for (const SimWorker::Rows& rows : fatal_rows_) {
    SimWorker::Rows& all = fatal.try_emplace(rows.request, rows).first->second;
    all.begin = std::min(all.begin, rows.begin);
    all.end = std::max(all.end, rows.end);
  }
  for (const auto& [id, rows] : fatal) liveness_->NoteFatal(id, rows.begin, rows.end);
  if (results_lost_ && !started_.empty()) liveness_->NoteUnknownFatal();
}

absl::Status Simulation::NextGroup() { return NextGroup(RandomGroup()); }

absl::Status Simulation::NextGroup(ExecutorDescription group) {
  epoch_ = Epoch(epoch_.value() + 1);
  group_ = std::move(group);
  copying_.clear();
  liveness_->Begin(group_);
  const std::uint64_t failed = core_->Snapshot().counters.failed;
  if (absl::Status s = core_->Ready(epoch_, group_); !s.ok()) return s;
  Count(SimFault::kTooLargeForNewGroup, core_->Snapshot().counters.failed - failed);
  worker_ = std::make_unique<SimWorker>(
      epoch_, group_, ngrams_,
      [this](const RequestId& id) -> const SimClient& { return Find(id); });
  front_.reset();
  return AfterEvent();
}

// A message of a lost epoch changes nothing in the next epoch, on either side.
absl::Status Simulation::LateMessage() {
  if (stale_plan_.has_value() && random_.OneIn(2)) {
    Count(SimFault::kEpochRefused);
    return worker_->Refuse(*std::exchange(stale_plan_, std::nullopt));
  }
  const scheduler::CoreSnapshot before = core_->Snapshot();
  const std::uint64_t digest = core_->digest();
  const Epoch old(epoch_.value() - 1);
  if (random_.OneIn(2)) {
    Count(SimFault::kLateLoss);
    core_->Lost(old);
  } else {
    Count(SimFault::kLateReady);
    if (absl::Status s = core_->Ready(old, group_); !s.ok()) return s;
  }
  const scheduler::CoreSnapshot after = core_->Snapshot();
  if (!after.load.ready || after.in_flight != before.in_flight || core_->digest() != digest ||
      after.counters.replays != before.counters.replays) {
    return Broken(9, "an event of an older epoch had an effect");
  }
  return AfterEvent();
}

absl::Status Simulation::PlanAndAnswer() {
  std::uint64_t plans = 0;
  do {
    plans = core_->Snapshot().counters.plans;
    if (absl::Status s = MakePlan(); !s.ok()) return s;
    if (absl::Status s = ApplyPlan(); !s.ok()) return s;
  } while (core_->Snapshot().counters.plans > plans);
  if (worker_->CanComplete()) {
    constexpr std::size_t kAll = 1000;
    absl::StatusOr<SimResult> result = worker_->Complete(kAll);
    if (!result.ok()) return result.status();
    results_.push_back(*std::move(result));
  }
  if (absl::Status s = ApplyPlan(); !s.ok()) return s;
  return DeliverResult();
}

absl::StatusOr<std::optional<Simulation::Pause>> Simulation::PauseAfterLoss(std::uint64_t steps,
                                                                            bool blamed) {
  const auto plans = [this] { return core_->Snapshot().counters.plans; };
  cancel_one_in_ = 1u << 30;
  kill_one_in_ = 0;
  blames_ = refuses_ = constrains_ = false;
  constexpr std::uint32_t kRarer = 4;  // than in Run, and so there are as many more ticks
  arrive_one_in_ *= kRarer;
  absl::Status status = ReviveGroup();
  while (status.ok() && (plans() < steps || worker_->UnderWay().empty())) {
    if (++ticks_ > steps * 200 * kRarer) return Broken(7, "too few plans were made");
    status = Tick(/*arrivals=*/true);
  }
  if (!status.ok()) return status;
  std::uint64_t places = 1;  // for the request that arrives
  for (const std::uint64_t id : live_) {
    const TokenizedRequest& request = clients_.at(id).request();
    places += request.beam ? request.beam->beams : request.sequences;
  }
  if (places > scheduler::MaxSequences(options_, group_)) return std::nullopt;
  Pause pause;
  pause.lag = group_.lag;
  const std::vector<RequestId> under_way = worker_->UnderWay();
  for (const scheduler::OpenSequenceView& sequence : core_->OpenSequences()) {
    pause.under_way += static_cast<std::uint64_t>(
        std::count(under_way.begin(), under_way.end(), sequence.request));
  }
  if (blamed) NoteUnderWay();
  ExecutorDescription next = group_;
  next.block_count = 20'000;  // room for all
  worker_.reset();
  plans_.clear();
  results_.clear();
  ReportLoss();
  if (status = NextGroup(next); !status.ok()) return status;
  TokenizedRequest newcomer;
  newcomer.id = {.incarnation = 7, .counter = next_id_++};
  newcomer.attempt = Attempt(1);  // it is not refused for the queue
  newcomer.prompt = {static_cast<TokenId>(fatal_.Below(kSimVocab))};
  newcomer.tenant = "t";
  newcomer.stop.max_tokens = 1;
  const std::uint64_t new_id = newcomer.id.counter;
  std::map<std::uint64_t, std::uint64_t> had;  // tokens, by request that had some
  const auto tokens = [this](std::uint64_t id) {
    const SimClient& client = clients_.at(id);
    std::uint64_t sum = 0;
    for (std::uint32_t i = 0; i < client.request().sequences; ++i) {
      sum += client.delivered(SequenceIndex(i));
    }
    return sum;
  };
  for (const std::uint64_t id : live_) {
    if (tokens(id) > 0) had.emplace(id, tokens(id));
  }
  pause.waited = had.size();
  had.emplace(new_id, 0);
  Arrive(std::move(newcomer));
  if (status = AfterEvent(); !status.ok()) return status;
  const std::uint64_t begin = plans();
  while (!had.empty()) {
    if (plans() - begin > 100'000) return Broken(7, "a pause without end");
    if (status = PlanAndAnswer(); !status.ok()) return status;
    for (auto it = had.begin(); it != had.end();) {
      const bool over = clients_.at(it->first).ended() || tokens(it->first) > it->second;
      if (over) (it->first == new_id ? pause.newcomer : pause.plans) = plans() - begin;
      it = over ? had.erase(it) : std::next(it);
    }
  }
  return pause;
}

// No more arrivals: everything must end, and nothing may be left.
absl::Status Simulation::WindDown() {
  core_->Drain();
  TokenizedRequest late = RandomRequest(), again = RandomRequest();
  late.attempt = Attempt(0);
  again.attempt = Attempt(1);
  Arrive(std::move(late));
  Arrive(std::move(again));
  if (absl::Status s = AfterEvent(); !s.ok()) return s;
  const std::uint64_t last = ticks_ + 400'000;
  while (core_->live_requests() > 0 || !plans_.empty() || !results_.empty() || worker_ == nullptr ||
         worker_->CanComplete() || !worker_->state().Sequences().empty() ||
         worker_->state().copies_outstanding() > 0) {
    if (++ticks_ > last) return Broken(7, "the work does not end");
    if (absl::Status s = Tick(/*arrivals=*/false); !s.ok()) return s;
  }
  const scheduler::CoreSnapshot core = core_->Snapshot();
  if (core.load.blocks_used != 0) return Broken(1, "blocks are used when idle");
  if (core.load.outstanding_tokens != 0) return Broken(4, "tokens are outstanding when idle");
  if (core_->Plan(now_ns_).stall != scheduler::StallReason::kIdle) return Broken(7, "not idle");
  if (!live_.empty()) return Broken(5, "a request has not ended");
  if (core.counters.accepted != Sum(core.counters)) return Broken(5, "ends and acceptances");
  if (core.counters.preemptions != preemptions_) return Broken(5, "preemptions reported");
  return absl::OkStatus();
}

absl::Status Simulation::AfterEvent() {
  if (absl::Status s = TakeEvents(); !s.ok()) return s;
  if (absl::Status s = core_->CheckInvariants(); !s.ok()) return s;
  CountTransitions();
  return CompareWithWorker();
}

absl::Status Simulation::TakeEvents() {
  for (const EngineEvent& event : core_->TakeEvents()) {
    const RequestId id = EventKey(event).first;
    SimClient& client = clients_.at(id.counter);
    if (absl::Status s = client.Take(event, now_ns_); !s.ok()) return s;
    const auto* ended = std::get_if<SequenceEnd>(&event);
    if (ended != nullptr && ended->reason == FinishReason::kDeadline) {
      if (absl::Status s = CheckEarlyEnd(client); !s.ok()) return s;
    }
    Trace(event.index() << 32 ^ id.counter);
    if (const auto* token = std::get_if<TokenEvent>(&event)) Trace(token->position);
    if (!client.ended()) continue;
    live_.erase(std::find(live_.begin(), live_.end(), id.counter));
    const auto* end = std::get_if<RequestEnd>(&event);
    if (end != nullptr) preemptions_ += end->usage.preemptions;
    coverage_.non_preemptible += end != nullptr && end->status.ok() && end->usage.preemptions > 0 &&
                                 end->usage.preemptions == options_.max_preemptions;
    coverage_.beams_served += client.request().beam && client.status().ok();
    if (client.accepted()) continue;
    coverage_.refused_full += absl::IsResourceExhausted(client.status());
    coverage_.refused_wait += absl::StrContains(client.status().message(), "wait would be");
    coverage_.refused_too_large += absl::IsInvalidArgument(client.status());
    coverage_.refused_draining += absl::IsUnavailable(client.status());
  }
  return absl::OkStatus();
}

}  // namespace flotilla::testing
