// The second part of StepPlanner: deals the rows that decodes leave to prompts, begun and new ones.
#include <algorithm>
#include <utility>

#include "scheduler/core/step_planner.h"

namespace flotilla::scheduler {
namespace {

// Waiting requests that a plan tries to admit in vain, and how many more it passes over that wait
// for a prefix. They limit the work of a plan.
constexpr std::size_t kMostTried = 32, kMostWaitingForPrefix = 128;
// The part of the rows left that is kept for shorter prompts.
constexpr std::uint32_t kShorterShare = 4;

bool Contains(const std::vector<TableIndex>& all, TableIndex index) {
  return std::find(all.begin(), all.end(), index) != all.end();
}

void Erase(std::vector<TableIndex>& all, TableIndex index) {
  all.erase(std::remove(all.begin(), all.end(), index), all.end());
}

}  // namespace

void StepPlanner::AddExpected(const Request& request, std::vector<ExpectedOutput>& expected) const {
  constexpr std::uint64_t kMostTokens = 1024;  // no prediction is useful further ahead
  if (request.reserves()) return;              // its blocks are reserved
  for (const TableIndex index : request.sequences) {
    const Sequence& sequence = state_.sequences[index];
    expected.push_back({.remaining = std::min(state_.MemoryOutputs(sequence), kMostTokens),
                        .own_blocks = state_.epoch->kv.OwnBlocks(sequence),
                        .window_room = state_.epoch->kv.WindowRoom(sequence)});
  }
}

// The blocks that the running requests and `request` are predicted to need at once beyond
// those that they hold.
std::uint64_t StepPlanner::PeakBlocksWith(const Request& request) {
  const auto shorter = [](const ExpectedOutput& a, const ExpectedOutput& b) {
    return a.remaining < b.remaining;
  };
  if (state_.options.expected_output_permille == 0) return 0;
  if (!expected_.has_value()) {
    expected_.emplace();
    for (std::size_t at = 0; at < state_.running.size();) {
      const Request& running = state_.RequestOf(state_.sequences[state_.running[at]]);
      AddExpected(running, *expected_);
      at += running.sequences.size();
    }
    std::sort(expected_->begin(), expected_->end(), shorter);
  }
  std::vector<ExpectedOutput> more;
  AddExpected(request, more);
  std::sort(more.begin(), more.end(), shorter);
  std::vector<ExpectedOutput> all(expected_->size() + more.size());
  std::merge(expected_->begin(), expected_->end(), more.begin(), more.end(), all.begin(), shorter);
  return PeakBlocks(all, [this](std::uint64_t t) { return state_.epoch->kv.MostGrowth(t); });
}

// The blocks for all tokens that the request knows: its first sequence begins with the
// match, and the others fork. For a protected request, all blocks that are reserved for it.
std::uint64_t StepPlanner::AdmissionNeeds(const Request& request,
                                          const KvCacheManager::Match& match) const {
  const KvCacheManager& kv = state_.epoch->kv;
  if (request.reserves()) {
    const std::uint64_t expected = ReservationOf(request);
    return match.pinned - match.pinned_in_windows + CountedOn(match) + expected -
           std::min<std::uint64_t>(expected, match.secure);
  }
  const auto first = state_.sequences[request.sequences.front()].tokens.size();
  std::uint64_t needs = kv.BlocksToOpen(match, first) + CountedOn(match);
  for (std::size_t i = 1; i < request.sequences.size(); ++i) {
    const Sequence& sequence = state_.sequences[request.sequences[i]];
    needs += kv.BlocksFrom(sequence.fork.length, sequence.tokens.size());
  }
  // Beams that are still to come begin at the end of the prompt.
  const std::uint64_t beams = request.width() - request.sequences.size();
  return needs + beams * kv.BlocksFrom(request.prompt_tokens, request.prompt_tokens + 1);
}

bool StepPlanner::MustPoll() const {
  const bool waits = !state_.waiting.empty() || !short_of_blocks_.empty();
  return waits && state_.epoch->kv.copies_pending() && state_.epoch->in_flight.empty();
}

bool StepPlanner::WantsLoad(const KvCacheManager::Match& match) const {
  const std::uint64_t promised = state_.running.empty() ? 0 : promised_blocks_;
  return match.in_tiers > 0 && free_blocks_ >= match.longer_pinned + match.in_tiers + promised;
}

void StepPlanner::Load(const Admission& load) {
  const Request& request = state_.requests[load.request];
  state_.epoch->kv.Load(state_.sequences[request.sequences.front()], load.match);
  free_blocks_ -= load.match.in_tiers;
  available_blocks_ -= load.match.in_tiers;
  state_.counters.blocks_in += load.match.in_tiers;
}

void StepPlanner::LoadAhead() {
  constexpr std::size_t kRequests = 4;
  KvCacheManager& kv = state_.epoch->kv;
  if (!kv.tiers().any() || isolated_.has_value() || !short_of_blocks_.empty()) return;
  std::uint64_t kept = promised_blocks_;
  for (const TableIndex index : state_.waiting.First(kRequests)) {
    const Request& request = state_.requests[index];
    const KvCacheManager::Match match =
        kv.FindPrefix(state_.sequences[request.sequences.front()], request, state_.RecomputeNs());
    const std::uint64_t needs = AdmissionNeeds(request, match);
    if (free_blocks_ < kept + ExpectedBlocks(request) + needs) return;
    if (match.in_tiers > 0) Load({index, match});
    kept += needs - match.in_tiers;
  }
}

void StepPlanner::StoreAhead() {
  const bool full = state_.reserved_sequences >= state_.MaxRunning();
  const bool wanted = !short_of_blocks_.empty() || (!state_.waiting.empty() && !full);
  // One block for the next token of each sequence, and what prompts need.
  const std::uint64_t kept = promised_blocks_ + state_.reserved_sequences;
  const KvCacheManager::StoredAhead stored =
      state_.epoch->kv.StoreAhead({.step_ns = plan_.predicted_ns,
                                   .steps = state_.description->lag + 2,
                                   .spare = wanted || free_blocks_ < kept ? 0 : free_blocks_ - kept,
                                   .block_ns = state_.RecomputeNs()});
  free_blocks_ -= stored.unnamed;
  available_blocks_ -= stored.unnamed;
  state_.counters.blocks_out += stored.begun;
}

std::uint64_t StepPlanner::ExpectedBlocks(const Request& request) {
  return std::max(PeakBlocksWith(request),
                  std::uint64_t{state_.options.watermark_blocks} * state_.reserved_sequences);
}

std::optional<TableIndex> StepPlanner::WhoComputesPrefix(const Request& request,
                                                         const KvCacheManager::Match& match) const {
  const Sequence& first = state_.sequences[request.sequences.front()];
  // Most that wait for a prefix wait for the same one.
  for (const auto* sequences : {&computing_, &std::as_const(state_.running)}) {
    for (const TableIndex index : *sequences) {
      const Sequence& other = state_.sequences[index];
      if (state_.epoch->kv.WillPublish(other, state_.RequestOf(other), first, request, match)) {
        return index;
      }
    }
  }
  return std::nullopt;
}

StepPlanner::Attempt StepPlanner::TryAdmit(TableIndex index) {
  const Request& request = state_.requests[index];
  const bool head = index == state_.waiting.head();
  Attempt attempt{.blocked = state_.reserved_sequences + request.width() > state_.MaxRunning()};
  if (attempt.blocked && !(head && state_.epoch->kv.tiers().any())) return attempt;
  const bool may_wait = !request.non_preemptible() && !state_.running.empty();
  // Its rows would probably be lost, so others that wait have them. It hides nobody.
  if (may_wait && state_.waiting.size() > 1 && state_.ExpectedLate(request)) return attempt;
  if (may_wait && !state_.LeavesTime(request)) {
    attempt.late = true;
    return attempt;
  }
  const KvCacheManager::Match match = state_.epoch->kv.FindPrefix(
      state_.sequences[request.sequences.front()], request, state_.RecomputeNs());
  const bool loads = head && WantsLoad(match);
  if (loads) load_ = Admission{index, match};
  if (loads || match.loading) {
    waits_for_prefix_ |= head;
    return {};
  }
  if (attempt.blocked) return attempt;
  // Alone, the request fits the pool (see admission), except for what copies hold.
  if (state_.running.empty() &&
      (state_.epoch->kv.HeldByCopies() == 0 || free_blocks_ >= AdmissionNeeds(request, match))) {
    return {.admission = Admission{index, match}};
  }
  attempt.computing = WhoComputesPrefix(request, match);
  if (attempt.computing.has_value()) {
    waits_for_prefix_ |= head;
    return attempt;
  }
  // All of the request must fit beside what is promised already. Otherwise several
  // half-computed prompts could wait for each other.
  attempt.blocked =
      free_blocks_ < promised_blocks_ + ExpectedBlocks(request) + AdmissionNeeds(request, match);
  attempt.blocked |= !HasRoomInPlan(request);
  if (!attempt.blocked) attempt.admission = Admission{index, match};
  return attempt;
}

bool StepPlanner::CanAdmit() {
  load_.reset();
  waits_for_prefix_ = false;
  ForgetTried();
  NoteBlocked();
  bool found = false;
  while (!found && !load_.has_value()) {
    const std::optional<TableIndex> next = NextWaiting();
    if (!next.has_value()) break;
    const Attempt attempt = TryAdmit(*next);
    found = attempt.admission.has_value() && MayOvertake(*next);
    if (!found) NoteTried(*next, attempt);
  }
  ForgetTried();
  return found;
}

void StepPlanner::ForgetTried() {
  tried_.clear();
  tried_in_vain_ = 0;
  computing_.clear();
  queue_.clear();
}

// A request that starts in an isolated step can be overtaken, too.
void StepPlanner::NoteBlocked() {
  blocked_.clear();
  noted_all_ = false;
  blocked_isolated_.reset();
  const std::optional<TableIndex> head = state_.waiting.isolated_head();
  if (!isolated_.has_value() && head.has_value() && TryAdmit(*head).blocked)
    blocked_isolated_ = head;
}

void StepPlanner::NoteTried(TableIndex index, const Attempt& attempt) {
  tried_.insert(index);
  Erase(queue_, index);
  if (!attempt.computing.has_value()) {
    ++tried_in_vain_;
  } else if (!Contains(computing_, *attempt.computing)) {
    computing_.push_back(*attempt.computing);
  }
  // One that could start may not overtake another.
  const bool is_held = attempt.blocked || attempt.late || attempt.admission.has_value();
  if (is_held && !Contains(blocked_, index)) blocked_.push_back(index);
}

// Those whose turn is before that of the waiting request `index`, and which are overtaken if it
// starts.
std::vector<TableIndex> StepPlanner::OvertakenBy(TableIndex index) const {
  std::vector<TableIndex> overtaken;
  const auto add = [&](TableIndex blocked) {
    if (state_.Before(state_.requests[blocked], state_.requests[index])) {
      overtaken.push_back(blocked);
    }
  };
  for (const TableIndex blocked : blocked_) add(blocked);
  if (blocked_isolated_.has_value()) add(*blocked_isolated_);
  return overtaken;
}

bool StepPlanner::MayOvertake(TableIndex index) const {
  const std::uint64_t rows = state_.requests[index].waiting_tokens;
  const std::vector<TableIndex> overtaken = OvertakenBy(index);
  return std::all_of(overtaken.begin(), overtaken.end(), [&](TableIndex blocked) {
    return state_.requests[blocked].overtaken_rows + rows <= state_.MaxOvertakenRows();
  });
}

void StepPlanner::CountOvertaken(TableIndex index) {
  const std::vector<TableIndex> overtaken = OvertakenBy(index);
  for (const TableIndex blocked : overtaken) {
    state_.requests[blocked].overtaken_rows += state_.requests[index].waiting_tokens;
  }
  state_.counters.bypasses += !overtaken.empty();
  Erase(blocked_, index);
  if (blocked_isolated_ == index) blocked_isolated_.reset();
}

std::optional<TableIndex> StepPlanner::NextWaiting() {
  if (!short_of_blocks_.empty() || tried_in_vain_ >= kMostTried ||
      tried_.size() >= kMostTried + kMostWaitingForPrefix) {
    return std::nullopt;
  }
  if (RowsOfTarget(0, budget_) == 0) {
    // Shorter prompts may have had all the time that the target leaves.
    const bool lends =
        lender_.has_value() && !state_.requests[*lender_].admitted && !tried_.contains(*lender_);
    return lends ? lender_ : std::nullopt;
  }
  if (isolated_.has_value()) {
    const bool waits = !state_.requests[*isolated_].admitted && tried_.empty();
    return waits ? isolated_ : std::nullopt;
  }
  // Without a free place only blocks of the head are read back from tiers.
  const bool full = state_.reserved_sequences >= state_.MaxRunning();
  if (full && !tried_.empty()) return std::nullopt;
  if (queue_.empty()) {
    queue_ = state_.waiting.First(kMostTried + 2 * tried_.size());
    std::erase_if(queue_, [this](TableIndex index) { return tried_.contains(index); });
    std::reverse(queue_.begin(), queue_.end());
  }
  if (queue_.empty()) return std::nullopt;
  return queue_.back();
}

void StepPlanner::DealRows() {
  NoteBlocked();
  while (budget_ > 0) {
    const std::optional<TableIndex> waiting = NextWaiting();
    if (prompts_.empty() && !waiting.has_value()) return;
    const Sequence* prompt = prompts_.empty() ? nullptr : &state_.sequences[prompts_.front()];
    const bool is_new =
        waiting.has_value() &&
        (prompt == nullptr || state_.Before(state_.requests[*waiting], state_.RequestOf(*prompt)));
    const TableIndex request = is_new ? *waiting : prompt->request;
    const std::uint64_t rows = is_new ? state_.requests[request].waiting_tokens : RowsLeft(*prompt);
    // Behind a long context few rows take all the time that the target leaves.
    const std::uint32_t all = RowsOfTarget(is_new ? 0 : prompt->length.scheduled_max, budget_);
    if (!lender_.has_value() && rows >= all && MaxChunk() > all - all / kShorterShare) {
      lender_ = request;
      DealToShorter(request, rows);
    } else if (is_new) {
      DealToWaiting(request, budget_);
    } else {
      DealToPrompt(prompts_.front(), budget_);
    }
  }
}

void StepPlanner::DealToPrompt(TableIndex index, std::uint32_t most) {
  Erase(prompts_, index);
  const Sequence& sequence = state_.sequences[index];
  const Request& request = state_.RequestOf(sequence);
  const std::uint32_t begin = sequence.length.scheduled_max;
  const bool advances = InFirstRequest(sequence) || lender_ == sequence.request;
  const std::uint32_t wanted =
      RowsOfTarget(begin, std::min({most, MaxChunk(), RowsLeft(sequence)}), advances);
  const std::uint32_t rows = RowsWithin(sequence, wanted, PromptRoom(request));
  if (rows == 0) return;
  const std::uint64_t takes =
      state_.epoch->kv.BlocksNeeded(sequence, sequence.length.scheduled_max + rows);
  Take(request, takes);
  Redeem(request, takes);
  budget_ -= rows;
  shape_.AddChunk(begin, rows);
  EmitChunk(index, rows);
}

bool StepPlanner::DealToWaiting(TableIndex index, std::uint32_t most) {
  const Attempt attempt = TryAdmit(index);
  if (load_.has_value()) {
    Load(*load_);
    load_.reset();
  } else if (attempt.admission.has_value() && MayOvertake(index)) {
    Erase(queue_, index);
    Admit(*attempt.admission, most);
    if (state_.options.fair_share) queue_.clear();  // its tenant was charged
    return true;
  }
  NoteTried(index, attempt);
  // Who waits for a prefix lends its order to who computes it.
  if (attempt.computing.has_value() && Contains(prompts_, *attempt.computing)) {
    DealToPrompt(*attempt.computing, most);
  }
  return false;
}

void StepPlanner::DealToShorter(TableIndex index, std::uint64_t rows) {
  const Request& than = state_.requests[index];
  const std::uint32_t left = budget_ - budget_ / kShorterShare;
  while (budget_ > left && RowsOfTarget(0, budget_) > 0) {
    const std::optional<TableIndex> prompt = ShortestPrompt(than, rows);
    const std::optional<TableIndex> waiting = ShortestWaiting(than, rows);
    const bool is_new =
        waiting.has_value() && (!prompt.has_value() || state_.requests[*waiting].waiting_tokens <
                                                           RowsLeft(state_.sequences[*prompt]));
    if (is_new) {
      if (!MayGoFirst(*waiting)) return;  // its own turn may come later in this step
      if (!DealToWaiting(*waiting, budget_ - left)) return;
    } else if (prompt.has_value()) {
      DealToPrompt(*prompt, budget_ - left);
    } else {
      return;
    }
  }
}

// Whether a shorter request may start before its turn. Those whose turn is before its own are
// overtaken, even if they come later in this step; but not those that wait for a prefix anyway.
bool StepPlanner::MayGoFirst(TableIndex index) {
  const Attempt attempt = TryAdmit(index);
  load_.reset();
  if (!attempt.admission.has_value()) return true;
  if (!std::exchange(noted_all_, true)) {
    for (const TableIndex other : state_.waiting.First(kMostTried)) {
      if (tried_.contains(other)) continue;
      const Attempt turn = TryAdmit(other);
      const bool starts = turn.admission.has_value() || load_.has_value();
      load_.reset();  // the blocks that it would be read back to
      if (turn.blocked || turn.late || starts) blocked_.push_back(other);
    }
  }
  return MayOvertake(index);
}

bool StepPlanner::MayTakeFrom(const Request& than, const Request& request) const {
  if (request.order.group > than.order.group) return false;
  return request.tenant == than.tenant || state_.fair.Before(request.tenant, than.tenant);
}

std::optional<TableIndex> StepPlanner::ShortestPrompt(const Request& than,
                                                      std::uint64_t rows) const {
  std::optional<TableIndex> shortest;
  std::uint64_t least = std::min<std::uint64_t>(rows, state_.MaxStepTokens() + 1);
  for (const TableIndex index : prompts_) {
    const Sequence& sequence = state_.sequences[index];
    if (RowsLeft(sequence) >= least || !MayTakeFrom(than, state_.RequestOf(sequence))) continue;
    least = RowsLeft(sequence);
    shortest = index;
  }
  return shortest;
}

std::optional<TableIndex> StepPlanner::ShortestWaiting(const Request& than,
                                                       std::uint64_t rows) const {
  const std::optional<TableIndex> index = state_.waiting.shortest();
  if (!index.has_value() || isolated_.has_value() || !short_of_blocks_.empty()) {
    return std::nullopt;
  }
  const Request& request = state_.requests[*index];
  if (request.waiting_tokens >= rows || tried_.contains(*index)) return std::nullopt;
  return MayTakeFrom(than, request) ? index : std::nullopt;
}

}  // namespace flotilla::scheduler
