// The second half of StepPlanner: what was decided becomes a plan.
#include <algorithm>
#include <utility>

#include "scheduler/core/step_planner.h"

namespace flotilla {

void StepPlanner::EmitSkips() {
  for (const Slot slot : lacking_) {
    Branch& branch = state_.branches[slot];
    branch.sat_out = true;
    if (branch.state != BranchState::kDecode) continue;  // a prompt just is not run
    plan_.ops.push_back(Skip{.branch = branch.handle});
    state_.epoch->kv.AddSkip(plan_.step, branch.handle);
    ++state_.counters.skips;
  }
  for (const Slot slot : aside_) {
    const BranchHandle handle = state_.branches[slot].handle;
    plan_.ops.push_back(Skip{.branch = handle});
    state_.epoch->kv.AddSkip(plan_.step, handle);
    ++state_.counters.skips;
  }
}

// Openings come before any run, so that forks copy what earlier plans wrote; those
// from the prefix cache first, before a block that they count on is given away.
void StepPlanner::EmitOpenings() {
  for (const bool forks : {false, true}) {
    for (const Opening& opening : openings_) {
      if (state_.branches[opening.slot].fork.parent.has_value() == forks) EmitOpening(opening);
    }
  }
}

void StepPlanner::EmitOpening(const Opening& opening) {
  EpochState& epoch = *state_.epoch;
  Branch& branch = state_.branches[opening.slot];
  if (branch.fork.parent.has_value()) {
    branch.handle = epoch.handles.Take(opening.slot, plan_.step);
    branch.cohort = SmallestCohort();
    ++epoch.cohort_sizes[branch.cohort];
    const Branch& parent = state_.branches[*branch.fork.parent];
    state_.counters.block_copies += epoch.kv.Fork(parent, branch, state_.RequestOf(branch), plan_);
    ++state_.counters.forks;
    Opened(branch);
  } else {
    Open(opening.slot, opening.match);
  }
}

void StepPlanner::Opened(Branch& branch) {
  branch.opened = plan_.step;
  branch.state = BranchState::kPrefill;
  branch.prefill_tokens = static_cast<std::uint32_t>(branch.tokens.size());
  state_.UpdateOwed(branch);
}

// Opens a branch that no other can be the parent of.
void StepPlanner::Open(Slot slot, const KvLedger::Match& match) {
  EpochState& epoch = *state_.epoch;
  Branch& branch = state_.branches[slot];
  Request& request = state_.RequestOf(branch);
  branch.fork = ForkPlan{};
  branch.handle = epoch.handles.Take(slot, plan_.step);
  branch.cohort = SmallestCohort();
  ++epoch.cohort_sizes[branch.cohort];
  epoch.kv.Open(branch, request, match, plan_);
  state_.counters.lookup_tokens += branch.tokens.size();
  state_.counters.cached_tokens += branch.length.upper;
  if (!request.was_open) {
    request.cached_tokens = std::min(branch.length.upper, request.prompt_tokens);
    state_.waiting.Charge(request.tenant,
                          (request.prompt_tokens - request.cached_tokens) * FairShare::kPromptCost);
  }
  request.was_open = true;
  Opened(branch);
}

void StepPlanner::EmitDecodes() {
  for (const Slot slot : finished_) {
    const Branch& branch = state_.branches[slot];
    runs_.push_back({.handle = branch.handle, .samples = true});
  }
  for (const Slot slot : decodes_) {
    Branch& branch = state_.branches[slot];
    branch.length.Send(1, 1);
    state_.epoch->kv.Grow(branch, branch.length.upper, plan_);
    branch.sat_out = false;
    runs_.push_back({.handle = branch.handle, .least = 1, .most = 1, .samples = true});
  }
}

bool StepPlanner::TrimBranches() {
  bool trimmed = false;
  for (const Slot slot : state_.running) {
    Branch& branch = state_.branches[slot];
    if (branch.open()) trimmed |= state_.epoch->kv.Trim(branch, plan_);
  }
  state_.counters.trims += trimmed;
  return trimmed;
}

// As far as rows, blocks and the branch's own end allow. Blocks that prompts begun
// still need, and the reserve for growth, are left alone.
std::uint32_t StepPlanner::AllowedGuesses(const Branch& branch) const {
  const std::uint32_t most =
      std::min({state_.MaxDraftTokens(), budget_, branch.length.max - branch.length.least});
  const std::uint64_t kept =
      owed_blocks_ + std::uint64_t{state_.options.watermark_blocks} * state_.reserved_branches;
  const std::uint64_t blocks = free_blocks_ > kept ? free_blocks_ - kept : 0;
  const std::uint32_t upper = branch.length.upper;
  const std::uint32_t end = std::min(upper + most, branch.length.max);
  // Beyond its maximum no position is ever written.
  if (state_.epoch->kv.Lacks(branch, end) <= blocks) return most;
  return state_.epoch->kv.Reach(branch, end, blocks) - upper;
}

void StepPlanner::EmitGuesses() {
  if (state_.MaxDraftTokens() == 0) return;
  SpeculationLoad load{.rows = static_cast<std::uint32_t>(decodes_.size()),
                       .tokens = decodes_.size() * std::uint64_t{Guesses::kSure},
                       .prefill_ns = prefill_rows_ * state_.rates.prefill_ns_per_token()};
  const bool nobody = !lacking_.empty() || state_.costs.Stale(load.rows);
  for (std::size_t i = 0; i < decodes_.size(); ++i) {
    Branch& branch = state_.branches[decodes_[i]];
    const std::uint32_t most = nobody ? 0 : AllowedGuesses(branch);
    const std::uint32_t depth =
        most == 0 ? 0 : ChooseDepth(branch.guesses, load, state_.costs, most);
    load.rows += depth;
    load.tokens += ExpectedTokens(branch.guesses.chance(), depth);
    EmitGuesses(branch, runs_[finished_.size() + i], depth);
  }
}

void StepPlanner::EmitGuesses(Branch& branch, PlannedRun& run, std::uint32_t depth) {
  if (branch.told_depth != depth) {
    const Speculate op{.branch = branch.handle, .depth = depth};
    state_.epoch->kv.AddSpeculate(plan_.step, op);
    plan_.ops.push_back(op);
    branch.told_depth = depth;
  }
  if (depth == 0) return;
  run.depth = depth;
  run.most += depth;
  budget_ -= depth;
  guess_rows_ += depth;
  branch.length.Send(0, depth);
  free_blocks_ -= state_.epoch->kv.Lacks(branch, branch.length.upper);
  state_.epoch->kv.Grow(branch, branch.length.upper, plan_);
}

void StepPlanner::EmitChunk(Slot slot, std::uint32_t rows) {
  Branch& branch = state_.branches[slot];
  const std::uint32_t begin = branch.length.upper;
  const std::uint32_t end = begin + rows;
  branch.length.Send(rows, rows);
  branch.last_chunk = plan_.step;
  branch.sat_out = false;
  state_.epoch->kv.Grow(branch, end, plan_);
  const Request& request = state_.RequestOf(branch);
  state_.epoch->kv.Publish(branch, request, end);

  const bool last = end == branch.prefill_tokens;
  const bool samples = last && request.stop.max_tokens > 0 && request.beam == nullptr;
  if (last) branch.state = samples ? BranchState::kDecode : BranchState::kEnding;
  // Row i brings the log-probability of prompt token i + 1, if that is one and
  // was not delivered before a preemption.
  const std::uint32_t last_prompt = std::min(end, request.prompt_tokens - 1);
  const bool prompt_logprobs = request.logprobs.prompt_top != LogprobSpec::kOff &&
                               last_prompt > begin && last_prompt >= request.prompt_logprobs_next;
  Run run{.branch = branch.handle,
          .count = rows,
          .sample = samples,
          .prompt_logprobs = prompt_logprobs,
          .append = {branch.tokens.begin() + branch.told_tokens, branch.tokens.end()},
          .candidates = last && request.beam ? request.beam->search.candidates() : 0};
  branch.told_tokens = static_cast<std::uint32_t>(branch.tokens.size());
  state_.epoch->kv.AddRun(plan_.step, run);
  runs_.push_back({.handle = branch.handle,
                   .begin = begin,
                   .least = rows,
                   .most = rows,
                   .chunk = true,
                   .samples = samples,
                   .prompt_logprobs = prompt_logprobs,
                   .candidates = run.candidates});
  plan_.ops.push_back(std::move(run));
  prefill_rows_ += rows;
  state_.counters.prefill_tokens += rows;
}

std::uint32_t StepPlanner::SmallestCohort() const {
  const std::vector<std::uint32_t>& sizes = state_.epoch->cohort_sizes;
  return static_cast<std::uint32_t>(std::min_element(sizes.begin(), sizes.end()) - sizes.begin());
}

void StepPlanner::EmitAdmissions() {
  while (true) {
    const std::optional<Start> start = FindStart();
    if (load_.has_value()) {
      Load(*load_);  // and look again: it may have taken what another would begin with
    } else if (start.has_value()) {
      Begin(*start);
    } else {
      return;
    }
  }
}

// Opens the request's first branch; the others stay pending for now.
void StepPlanner::Begin(const Start& start) {
  const KvLedger& kv = state_.epoch->kv;
  const Request& request = state_.requests[start.request];
  const std::uint64_t needs = StartNeeds(request, start.match);
  if (const Slot head = state_.waiting.head(); head != start.request) {
    ++state_.requests[head].bypassed;
    ++state_.counters.bypasses;
  }
  growth_.reset();
  state_.OpenRequest(start.request);
  if (request.suspect) state_.probation = start.request;
  const Slot first = request.branches.front();
  Branch& branch = state_.branches[first];
  Open(first, start.match);

  const std::uint32_t rows = std::min(
      {branch.prefill_tokens - branch.length.upper, state_.options.max_chunk_tokens, budget_});
  const std::uint64_t takes = start.match.pinned + kv.Lacks(branch, branch.length.upper + rows);
  free_blocks_ -= request.undisturbed ? needs : takes;
  Owe(request, needs - takes);
  budget_ -= rows;
  EmitChunk(first, rows);
}

}  // namespace flotilla
