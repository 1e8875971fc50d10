#include "worker/core/group_state.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {

struct GroupState::Sequence {
  SequenceHandle handle;
  RequestId request;
  SequenceIndex index;
  std::vector<TokenId> tokens;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t length = 0;  // after every applied plan
  std::vector<std::vector<std::int32_t>> tables;
  std::vector<std::uint32_t> fronts;  // [groups] leading entries of the table without a block
  SamplingParams sampling;
  StopRule stop;
  LogprobSpec logprobs;
  std::uint32_t micro_batch = 0;
  bool is_beam = false;
  bool lacks_first = false;  // its open run has no position 0 yet (Batch::first_rows)
  Step last_run;
  Step deferred;  // the last step it was deferred in
  bool decoding = false;
  std::uint32_t draft_depth = 0;  // drafts allowed to each decode
  std::optional<FinishReason> finished;

  std::uint32_t outputs() const {
    return static_cast<std::uint32_t>(tokens.size()) - prompt_tokens;
  }
};

// A step between its Apply and its Complete.
struct GroupState::StepWork {
  struct Item {
    Sequence* sequence;
    BatchItem rows;
    bool ends;                    // the prompt is done and there is nothing to generate
    std::vector<TokenId> drafts;  // drafts after the last known token
  };
  Step step;
  std::vector<Item> items;
  std::vector<Sequence*> noops;
  std::vector<BlockCopy> copies;
  std::vector<RunCopy> run_copies;
  std::vector<BackgroundCopy> background;
  std::uint64_t row_count = 0;
  // Sequences that this plan drops. An earlier step in flight may still name them.
  std::vector<std::unique_ptr<Sequence>> retired;
};

namespace {

absl::Status Invalid(SequenceHandle sequence, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("sequence ", sequence.value(), ": ", what));
}

absl::Status CheckToken(SequenceHandle sequence, TokenId token, const ExecutorDescription& limits) {
  if (token >= 0 && static_cast<std::uint32_t>(token) < limits.vocab_size) return absl::OkStatus();
  return Invalid(sequence, absl::StrCat("token ", token, " outside the vocabulary"));
}

// Checks what OpenSequence says by itself, without the state.
absl::Status CheckOpen(const OpenSequence& op, const ExecutorDescription& limits) {
  if (op.prompt_tokens == 0 || op.prompt_tokens > op.tokens.size() ||
      op.tokens.size() > limits.max_context) {
    return Invalid(op.sequence, "number of tokens");
  }
  // The last token must run, or nothing could be sampled.
  if (op.cached_tokens >= op.tokens.size()) return Invalid(op.sequence, "cached tokens");
  for (TokenId token : op.tokens) {
    if (absl::Status s = CheckToken(op.sequence, token, limits); !s.ok()) return s;
  }
  if (op.micro_batch >= std::max(limits.lag, 1u)) return Invalid(op.sequence, "micro_batch");
  absl::Status s = CheckSampling(op.sampling, limits.vocab_size);
  s.Update(CheckStopRule(op.stop));
  s.Update(CheckLogprobs(op.logprobs));
  return s.ok() ? s : Invalid(op.sequence, s.message());
}

}  // namespace

GroupState::GroupState(Epoch epoch, const ExecutorDescription& description, Proposer* proposer)
    : epoch_(epoch),
      limits_(description),
      proposer_(proposer),
      slots_(description.max_sequences),
      decoders_(std::max(description.lag, 1u)) {}

GroupState::~GroupState() = default;

absl::StatusOr<Batch> GroupState::Apply(const StepPlan& plan) {
  if (broken_) return absl::FailedPreconditionError("an earlier plan could not be applied");
  if (plan.epoch != epoch_) {
    return absl::FailedPreconditionError(
        absl::StrCat("plan of epoch ", plan.epoch.value(), ", this is ", epoch_.value()));
  }
  if (plan.step.value() != step_.value() + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("plan of step ", plan.step.value(), " after step ", step_.value()));
  }
  if (in_flight_.size() >= decoders_.size()) {
    return absl::FailedPreconditionError("more plans applied and not completed than the lag");
  }
  StepWork work;
  work.step = plan.step;
  if (absl::Status status = ApplyAll(plan, work); !status.ok()) {
    broken_ = true;
    return status;
  }
  step_ = plan.step;
  Batch batch = MakeBatch(work);
  in_flight_.push_back(std::move(work));
  return batch;
}

absl::Status GroupState::ApplyAll(const StepPlan& plan, StepWork& work) {
  for (const PlanOp& op : plan.ops) {
    absl::Status status = std::visit([&](const auto& o) { return ApplyOp(o, work); }, op);
    if (!status.ok()) return status;
  }
  if (absl::Status status = AddDecodes(work); !status.ok()) return status;
  if (work.row_count > limits_.max_step_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("step of ", work.row_count, " tokens"));
  }
  if (digest_.value() != plan.digest) {
    return absl::DataLossError(absl::StrCat("digests differ in step ", work.step.value()));
  }
  return absl::OkStatus();
}

absl::Status GroupState::ApplyOp(const OpenSequence& op, StepWork&) {
  if (absl::Status status = CheckFree(op.sequence); !status.ok()) return status;
  if (absl::Status status = CheckOpen(op, limits_); !status.ok()) return status;
  auto sequence = std::make_unique<Sequence>();
  sequence->handle = op.sequence;
  sequence->request = op.request;
  sequence->index = op.index;
  sequence->tokens = op.tokens;
  sequence->prompt_tokens = op.prompt_tokens;
  sequence->length = op.cached_tokens;
  StartTables(*sequence);
  sequence->sampling = op.sampling;
  sequence->stop = op.stop;
  sequence->logprobs = op.logprobs;
  sequence->micro_batch = op.micro_batch;
  sequence->is_beam = op.is_beam;
  sequence->lacks_first = limits_.run_tokens > 0 && op.cached_tokens > 0;
  Insert(std::move(sequence));
  return absl::OkStatus();
}

absl::Status GroupState::ApplyOp(const GrantBlocks& op, StepWork&) {
  absl::StatusOr<Sequence*> sequence = FindOpen(op.sequence);
  if (!sequence.ok()) return sequence.status();
  return AppendBlocks(**sequence, op.group, op.blocks);
}

absl::Status GroupState::ApplyOp(const ForkSequence& op, StepWork& work) {
  absl::StatusOr<Sequence*> found = FindOpen(op.parent);
  if (!found.ok()) return found.status();
  const Sequence& parent = **found;
  if (absl::Status status = CheckFree(op.child); !status.ok()) return status;
  if (parent.last_run == work.step) return Invalid(op.parent, "forked in a step that runs it");
  if (op.length == 0 || op.length > parent.length) return Invalid(op.child, "length of a fork");
  if (op.tokens.empty() || std::uint64_t{op.length} + op.tokens.size() < parent.prompt_tokens) {
    return Invalid(op.child, "number of tokens");
  }
  if (op.micro_batch >= decoders_.size()) return Invalid(op.child, "micro_batch");
  auto child = std::make_unique<Sequence>();
  child->handle = op.child;
  child->request = parent.request;
  child->index = op.index;
  child->tokens.assign(parent.tokens.begin(), parent.tokens.begin() + op.length);
  child->prompt_tokens = parent.prompt_tokens;
  child->length = op.length;
  child->sampling = parent.sampling;
  child->stop = parent.stop;
  child->logprobs = parent.logprobs;
  child->micro_batch = op.micro_batch;
  child->is_beam = parent.is_beam;
  if (absl::Status status = Learn(*child, op.tokens, work.step); !status.ok()) return status;
  if (absl::Status status = ShareBlocks(parent, op, *child); !status.ok()) return status;
  if (absl::Status status = ShareRun(parent, op, *child, work); !status.ok()) {
    return status;
  }
  work.copies.insert(work.copies.end(), op.copies.begin(), op.copies.end());
  Insert(std::move(child));
  return absl::OkStatus();
}

// Makes tables without blocks. They begin behind what a sequence of this length does not need.
void GroupState::StartTables(Sequence& sequence) const {
  sequence.tables.resize(limits_.groups.size());
  for (std::size_t g = 0; g < limits_.groups.size(); ++g) {
    sequence.fronts.push_back(limits_.groups[g].UnneededBlocks(sequence.length));
    sequence.tables[g].assign(sequence.fronts[g], 0);
  }
}

// Makes a forked child's tables.
absl::Status GroupState::ShareBlocks(const Sequence& parent, const ForkSequence& op,
                                     Sequence& child) {
  StartTables(child);
  std::size_t copies = 0;
  for (std::uint32_t g = 0; g < limits_.groups.size(); ++g) {
    const KvGroup& kind = limits_.groups[g];
    const bool state = kind.kind == KvGroup::Kind::kState;
    const std::uint32_t shared = state ? 0 : op.length / kind.tokens_per_block;
    if (parent.fronts[g] > child.fronts[g]) {
      return Invalid(op.child, "forks where its parent has given blocks back");
    }
    std::vector<BlockId> blocks;
    for (std::uint32_t at = child.fronts[g]; at < shared; ++at) {
      blocks.emplace_back(static_cast<std::uint32_t>(parent.tables[g][at]));
    }
    if (state || op.length % kind.tokens_per_block > 0) {
      if (copies == op.copies.size()) return Invalid(op.child, "a fork without its copies");
      const BlockCopy& copy = op.copies[copies++];
      if (static_cast<std::int32_t>(copy.from.value()) != parent.tables[g][shared]) {
        return Invalid(op.child, absl::StrCat("copy of block ", copy.from.value()));
      }
      blocks.push_back(copy.to);
    }
    if (absl::Status s = AppendBlocks(child, GroupIndex(g), blocks); !s.ok()) return s;
  }
  return copies == op.copies.size() ? absl::OkStatus()
                                    : Invalid(op.child, "more copies than a fork needs");
}

// A child gets a copy of its parent's open run and position 0. If it begins within a run, its
// parent has that only while it is the run of its last row.
absl::Status GroupState::ShareRun(const Sequence& parent, const ForkSequence& op, Sequence& child,
                                  StepWork& work) const {
  const std::uint32_t run = limits_.run_tokens;
  if (run == 0) return absl::OkStatus();
  if (op.length % run > 0 && (parent.length - 1) / run != op.length / run) {
    return Invalid(op.child, "forks within a run that its parent has left");
  }
  child.lacks_first = parent.lacks_first;
  work.run_copies.push_back({.from = op.parent, .to = op.child});
  return absl::OkStatus();
}

// Appends tokens that the plan sends to those that the sequence knows.
absl::Status GroupState::Learn(Sequence& sequence, absl::Span<const TokenId> tokens, Step step) {
  if (sequence.tokens.size() + tokens.size() > limits_.max_context) {
    return Invalid(sequence.handle, "more tokens than the context holds");
  }
  for (const TokenId token : tokens) {
    if (absl::Status s = CheckToken(sequence.handle, token, limits_); !s.ok()) return s;
    digest_.AddToken(step, sequence.handle, token);
    sequence.tokens.push_back(token);
  }
  return absl::OkStatus();
}

absl::Status GroupState::ApplyOp(const DropSequence& op, StepWork& work) {
  absl::StatusOr<Sequence*> found = FindOpen(op.sequence);
  if (!found.ok()) return found.status();
  Sequence& sequence = **found;
  if (sequence.last_run == work.step) return Invalid(op.sequence, "dropped in a step that runs it");
  for (std::uint32_t g = 0; g < sequence.tables.size(); ++g) {
    for (std::uint32_t at = sequence.fronts[g]; at < sequence.tables[g].size(); ++at) {
      RemoveBlock(sequence, g, at);
    }
  }
  digest_.Close(op.sequence, sequence.request, sequence.index);
  if (proposer_ != nullptr) proposer_->Forget(op.sequence);
  decoders_[sequence.micro_batch].erase(op.sequence);
  work.retired.push_back(std::move(slots_[op.sequence.value()]));
  return absl::OkStatus();
}

absl::Status GroupState::ApplyOp(const Run& op, StepWork& work) {
  if (op.pooled) return absl::UnimplementedError("Run::pooled");
  absl::StatusOr<Sequence*> found = FindOpen(op.sequence);
  if (!found.ok()) return found.status();
  Sequence& sequence = **found;
  if (sequence.last_run == work.step) return Invalid(op.sequence, "runs twice in a step");
  if (op.count == 0) return Invalid(op.sequence, "runs no token");
  const bool choices = !op.append.empty() || op.candidates > 0;
  if (choices && !sequence.is_beam) {
    return Invalid(op.sequence, "choices of a sequence that is no beam");
  }
  if (op.sample && sequence.is_beam) return Invalid(op.sequence, "a beam samples");
  if (op.candidates > BeamOptions::kMaxCandidates) {
    return Invalid(op.sequence, "number of candidates");
  }
  if (absl::Status status = Learn(sequence, op.append, work.step); !status.ok()) return status;
  digest_.AddRun(work.step, op.sequence, op.count);
  return AddPrefill(sequence, op, work);
}

absl::Status GroupState::ApplyOp(const Defer& op, StepWork& work) {
  absl::StatusOr<Sequence*> sequence = FindOpen(op.sequence);
  if (!sequence.ok()) return sequence.status();
  if (!Due(**sequence, work.step)) {
    return Invalid(op.sequence, "defers a step that it would not run in");
  }
  (*sequence)->deferred = work.step;
  digest_.AddDefer(work.step, op.sequence);
  return absl::OkStatus();
}

absl::Status GroupState::ApplyOp(const BackgroundCopy& op, StepWork& work) {
  const auto invalid = [&op](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("background copy ", op.id, ": ", what));
  };
  if (op.id <= last_copy_) return invalid("ids do not ascend");
  if (op.tier >= limits_.tiers.size()) return invalid("no such tier");
  if (op.moves.empty()) return invalid("it moves nothing");
  for (const BackgroundCopy::Move& move : op.moves) {
    if (move.block == kNullBlock || move.block.value() >= limits_.block_count) {
      return invalid(absl::StrCat("block ", move.block.value()));
    }
    if (move.slot >= limits_.tiers[op.tier].block_count) {
      return invalid(absl::StrCat("slot ", move.slot));
    }
    digest_.AddCopy(work.step, op.id, op.tier, move.block, move.slot);
  }
  last_copy_ = op.id;
  copies_.insert(op.id);
  work.background.push_back(op);
  return absl::OkStatus();
}
absl::Status GroupState::ApplyOp(const LoadAdapter&, StepWork&) {
  return absl::UnimplementedError("LoadAdapter");
}
absl::Status GroupState::ApplyOp(const UnloadAdapter&, StepWork&) {
  return absl::UnimplementedError("UnloadAdapter");
}

absl::Status GroupState::ApplyOp(const TrimBlocks& op, StepWork& work) {
  absl::StatusOr<Sequence*> found = FindOpen(op.sequence);
  if (!found.ok()) return found.status();
  Sequence& sequence = **found;
  if (sequence.last_run == work.step) return Invalid(op.sequence, "trimmed in a step that runs it");
  if (op.group.value() >= limits_.groups.size()) return Invalid(op.sequence, "no such KV group");
  const std::uint32_t g = op.group.value();
  std::vector<std::int32_t>& table = sequence.tables[g];
  if (op.count == 0 || op.count > table.size() - sequence.fronts[g]) {
    return Invalid(op.sequence, "number of blocks");
  }
  for (std::uint32_t i = 0; i < op.count; ++i) {
    RemoveBlock(sequence, g, static_cast<std::uint32_t>(table.size() - 1));
    table.pop_back();
  }
  return CheckCovered(sequence, sequence.length);
}

absl::Status GroupState::ApplyOp(const ReleaseBlocks& op, StepWork& work) {
  absl::StatusOr<Sequence*> found = FindOpen(op.sequence);
  if (!found.ok()) return found.status();
  Sequence& sequence = **found;
  if (sequence.last_run == work.step)
    return Invalid(op.sequence, "gives back what this step reads");
  const std::uint32_t g = op.group.value();
  if (g >= limits_.groups.size()) return Invalid(op.sequence, "no such KV group");
  std::uint32_t& front = sequence.fronts[g];
  if (op.count == 0 || op.count > sequence.tables[g].size() - front) {
    return Invalid(op.sequence, "number of blocks");
  }
  // The scheduler does not know of the latest ends; a sequence that has finished runs no more.
  // `length` may still count draft tokens; the rows that follow are checked again.
  if (!sequence.finished &&
      std::uint64_t{front} + op.count > limits_.groups[g].UnneededBlocks(sequence.length)) {
    return Invalid(op.sequence, "gives back blocks that it needs");
  }
  for (std::uint32_t i = 0; i < op.count; ++i) {
    RemoveBlock(sequence, g, front);
    sequence.tables[g][front++] = 0;
  }
  return absl::OkStatus();
}

absl::Status GroupState::ApplyOp(const Speculate& op, StepWork& work) {
  absl::StatusOr<Sequence*> sequence = FindOpen(op.sequence);
  if (!sequence.ok()) return sequence.status();
  if ((*sequence)->is_beam) return Invalid(op.sequence, "a beam drafts");
  if (op.depth > limits_.max_draft_tokens) return Invalid(op.sequence, "depth of its draft tokens");
  (*sequence)->draft_depth = op.depth;
  digest_.AddSpeculate(work.step, op.sequence, op.depth);
  return absl::OkStatus();
}

absl::Status GroupState::CheckFree(SequenceHandle handle) const {
  if (handle.value() >= slots_.size()) return Invalid(handle, "handle out of range");
  if (slots_[handle.value()] != nullptr) return Invalid(handle, "handle in use");
  return absl::OkStatus();
}

absl::StatusOr<GroupState::Sequence*> GroupState::FindOpen(SequenceHandle handle) const {
  if (handle.value() >= slots_.size() || slots_[handle.value()] == nullptr) {
    return Invalid(handle, "not open");
  }
  return slots_[handle.value()].get();
}

void GroupState::Insert(std::unique_ptr<Sequence> sequence) {
  digest_.Open(sequence->handle, sequence->request, sequence->index);
  slots_[sequence->handle.value()] = std::move(sequence);
}

absl::Status GroupState::AppendBlocks(Sequence& sequence, GroupIndex group,
                                      absl::Span<const BlockId> blocks) {
  if (group.value() >= limits_.groups.size()) return Invalid(sequence.handle, "no such KV group");
  const KvGroup& kind = limits_.groups[group.value()];
  std::vector<std::int32_t>& table = sequence.tables[group.value()];
  for (BlockId block : blocks) {
    if (block == kNullBlock || block.value() >= limits_.block_count) {
      return Invalid(sequence.handle, absl::StrCat("grant of block ", block.value()));
    }
    const bool full =
        kind.kind == KvGroup::Kind::kState
            ? !table.empty()
            : table.size() * std::uint64_t{kind.tokens_per_block} >= limits_.max_context;
    if (full) return Invalid(sequence.handle, "more blocks than the context needs");
    digest_.AddBlock(sequence.handle, group, static_cast<std::uint32_t>(table.size()), block);
    table.push_back(static_cast<std::int32_t>(block.value()));
  }
  return absl::OkStatus();
}

// Takes entry `at` out of the digest.
void GroupState::RemoveBlock(Sequence& sequence, std::size_t group, std::uint32_t at) {
  digest_.RemoveBlock(sequence.handle, GroupIndex(static_cast<std::uint32_t>(group)), at,
                      BlockId(static_cast<std::uint32_t>(sequence.tables[group][at])));
}

// Checks that the rows from the sequence's length to `end` have blocks, and all positions that
// they see.
absl::Status GroupState::CheckCovered(const Sequence& sequence, std::uint64_t end) const {
  for (std::size_t g = 0; g < limits_.groups.size(); ++g) {
    const KvGroup& kind = limits_.groups[g];
    const std::size_t blocks = sequence.tables[g].size();
    const bool covered = kind.kind == KvGroup::Kind::kState
                             ? blocks > 0 || end == 0
                             : blocks * std::uint64_t{kind.tokens_per_block} >= end;
    if (!covered) {
      return Invalid(sequence.handle, absl::StrCat("no block behind position ", end - 1));
    }
    if (sequence.fronts[g] > kind.UnneededBlocks(sequence.length)) {
      return Invalid(sequence.handle, "it has given back a block that its next row sees");
    }
  }
  return absl::OkStatus();
}

bool GroupState::Due(const Sequence& sequence, Step step) const {
  const std::uint64_t lag = decoders_.size();
  return sequence.decoding && step.value() % lag == sequence.micro_batch &&
         step.value() >= sequence.last_run.value() + lag && sequence.deferred != step;
}

bool GroupState::AtLengthEnd(const Sequence& sequence) const {
  return sequence.outputs() >= sequence.stop.max_tokens ||
         sequence.tokens.size() >= limits_.max_context;
}

absl::Status GroupState::AddPrefill(Sequence& sequence, const Run& run, StepWork& work) {
  if (sequence.decoding) return Invalid(run.sequence, "prefill of a decoding sequence");
  if (run.count > sequence.tokens.size() - sequence.length) {
    return Invalid(run.sequence, "runs past its known tokens");
  }
  const bool last = sequence.length + run.count == sequence.tokens.size();
  if ((run.sample || run.candidates > 0) && !last) {
    return Invalid(run.sequence, "samples before its last known token");
  }
  if (run.prompt_logprobs && sequence.logprobs.prompt_top == LogprobSpec::kOff) {
    return Invalid(run.sequence, "log-probabilities that were not asked for");
  }
  if (absl::Status status = AddRows(sequence, run.count, work); !status.ok()) return status;
  StepWork::Item& item = work.items.back();
  const bool at_end = AtLengthEnd(sequence);
  item.ends = last && at_end && !sequence.is_beam;
  item.rows.samples = run.sample && !at_end && !sequence.finished;
  item.rows.candidates = sequence.finished ? 0 : run.candidates;
  if (run.prompt_logprobs && item.rows.first_position + 1 < sequence.prompt_tokens) {
    const std::uint32_t first = item.rows.first_position + 1;
    item.rows.prompt_targets =
        absl::MakeConstSpan(sequence.tokens)
            .subspan(first, std::min(run.count, sequence.prompt_tokens - first));
  }
  if (run.sample) {
    sequence.decoding = true;
    decoders_[sequence.micro_batch].insert(sequence.handle);
  }
  return absl::OkStatus();
}

std::uint32_t GroupState::DraftLimit(const Sequence& sequence) const {
  if (proposer_ == nullptr || sequence.finished) return 0;
  // A decoding sequence is not at its end, so one more token fits in any case.
  const auto context = limits_.max_context - static_cast<std::uint32_t>(sequence.tokens.size()) - 1;
  // A run may only be sealed, or left, with tokens that are right.
  const std::uint32_t in_run = limits_.run_tokens == 0
                                   ? context
                                   : limits_.run_tokens - 1 - sequence.length % limits_.run_tokens;
  return std::min(
      {sequence.draft_depth, sequence.stop.max_tokens - sequence.outputs() - 1, context, in_run});
}

absl::Status GroupState::AddDecodes(StepWork& work) {
  std::vector<Sequence*> due;
  std::vector<DraftRequest> requests;
  for (SequenceHandle handle : decoders_[work.step.value() % decoders_.size()]) {
    Sequence& sequence = *slots_[handle.value()];
    if (!Due(sequence, work.step)) continue;
    due.push_back(&sequence);
    const std::uint32_t limit = DraftLimit(sequence);
    if (limit == 0) continue;
    // Draft rows would be the first ones of a run that the step is still to copy for a fork.
    const bool is_copied =
        std::any_of(work.run_copies.begin(), work.run_copies.end(),
                    [&](const RunCopy& copy) { return copy.from == sequence.handle; });
    if (is_copied && sequence.length % limits_.run_tokens == 0) continue;
    const std::uint64_t end = std::uint64_t{sequence.length} + 1 + limit;
    if (absl::Status status = CheckCovered(sequence, end); !status.ok()) return status;
    requests.push_back({.sequence = sequence.handle,
                        .index = sequence.index,
                        .tokens = sequence.tokens,
                        .output_index = sequence.outputs(),
                        .sampling = &sequence.sampling,
                        .stop = &sequence.stop,
                        .tables = sequence.tables,
                        .limit = limit,
                        .drafts = {}});
  }
  if (!requests.empty()) proposer_->Propose(absl::MakeSpan(requests));
  std::size_t next = 0;  // both lists are in order of the handles
  for (Sequence* sequence : due) {
    std::vector<TokenId> drafts;
    if (next < requests.size() && requests[next].sequence == sequence->handle) {
      drafts = std::move(requests[next].drafts);
      if (drafts.size() > requests[next].limit) drafts.resize(requests[next].limit);
      ++next;
    }
    if (absl::Status s = AddDecode(*sequence, std::move(drafts), work); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status GroupState::AddDecode(Sequence& sequence, std::vector<TokenId> drafts,
                                   StepWork& work) {
  if (sequence.finished) {
    sequence.last_run = work.step;
    work.noops.push_back(&sequence);
    return absl::OkStatus();
  }
  for (const TokenId token : drafts) {
    if (absl::Status s = CheckToken(sequence.handle, token, limits_); !s.ok()) return s;
  }
  const auto draft_rows = static_cast<std::uint32_t>(drafts.size());
  if (absl::Status status = AddRows(sequence, 1 + draft_rows, work); !status.ok()) return status;
  StepWork::Item& item = work.items.back();
  item.rows.decode = true;
  item.rows.samples = true;
  item.rows.drafts = draft_rows;
  item.drafts = std::move(drafts);
  return absl::OkStatus();
}

absl::Status GroupState::AddRows(Sequence& sequence, std::uint32_t count, StepWork& work) {
  const std::uint64_t end = std::uint64_t{sequence.length} + count;
  if (absl::Status status = CheckCovered(sequence, end); !status.ok()) return status;
  BatchItem rows;
  rows.sequence = sequence.handle;
  rows.index = sequence.index;
  rows.first_position = sequence.length;
  rows.row_count = count;
  rows.output_index = sequence.outputs();
  rows.known = sequence.tokens;
  rows.sampling = &sequence.sampling;
  rows.stop = &sequence.stop;
  rows.logprobs = &sequence.logprobs;
  work.items.push_back({&sequence, rows, false, {}});
  work.row_count += count;
  sequence.length = static_cast<std::uint32_t>(end);
  sequence.last_run = work.step;
  return absl::OkStatus();
}

Batch GroupState::MakeBatch(StepWork& work) const {
  std::sort(work.items.begin(), work.items.end(),
            [](const auto& a, const auto& b) { return a.rows.sequence < b.rows.sequence; });
  std::sort(work.noops.begin(), work.noops.end(),
            [](const Sequence* a, const Sequence* b) { return a->handle < b->handle; });
  Batch batch;
  batch.step = work.step;
  batch.copies = work.copies;
  batch.run_copies = work.run_copies;
  for (const StepWork::Item& item : work.items) {
    if (!item.sequence->lacks_first) continue;
    item.sequence->lacks_first = false;
    batch.first_rows.push_back({item.sequence->handle, item.sequence->tokens.front()});
  }
  batch.background = std::move(work.background);
  batch.group_count = static_cast<std::uint32_t>(limits_.groups.size());
  batch.items.reserve(work.items.size());
  batch.tokens.reserve(work.row_count);
  batch.tables.reserve(work.items.size() * batch.group_count);
  for (StepWork::Item& item : work.items) {
    item.rows.row_begin = static_cast<std::uint32_t>(batch.tokens.size());
    const auto first = item.sequence->tokens.begin() + item.rows.first_position;
    batch.tokens.insert(batch.tokens.end(), first,
                        first + (item.rows.row_count - item.rows.drafts));
    batch.tokens.insert(batch.tokens.end(), item.drafts.begin(), item.drafts.end());
    batch.tables.insert(batch.tables.end(), item.sequence->tables.begin(),
                        item.sequence->tables.end());
    batch.decode_rows += item.rows.decode ? item.rows.row_count : 0;
    batch.items.push_back(item.rows);
  }
  for (const Sequence* sequence : work.noops) batch.noops.push_back(sequence->handle);
  return batch;
}

absl::Status GroupState::CheckOutputs(const StepWork& work,
                                      absl::Span<const ItemOutput> outputs) const {
  if (outputs.size() != work.items.size()) {
    return absl::InvalidArgumentError("number of item outputs");
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const BatchItem& rows = work.items[i].rows;
    const std::size_t samples = rows.samples ? 1 + rows.drafts : 0;
    if (outputs[i].sampled.size() > samples) {
      return Invalid(rows.sequence, "more samples than rows");
    }
    for (const SampledToken& sampled : outputs[i].sampled) {
      if (absl::Status s = CheckToken(rows.sequence, sampled.token, limits_); !s.ok()) return s;
    }
    if (outputs[i].failed) continue;
    const bool may_be_late = rows.is_constrained();
    if ((outputs[i].sampled.size() != samples && !may_be_late) ||
        outputs[i].prompt.size() != rows.prompt_targets.size() ||
        (outputs[i].candidates.empty() && rows.candidates > 0 && !may_be_late) ||
        outputs[i].candidates.size() > rows.candidates) {
      return Invalid(rows.sequence, "output does not fit its rows");
    }
    for (const TopLogprob& candidate : outputs[i].candidates) {
      if (absl::Status s = CheckToken(rows.sequence, candidate.token, limits_); !s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

// A sample is a token of the sequence if the row that it came from held the right token
// before it. This always holds for the first sample, and for the others while the draft
// tokens are right.
void GroupState::TakeTokens(const ItemOutput& output, absl::Span<const TokenId> drafts,
                            Sequence& sequence, SequenceResult& entry) const {
  const std::vector<TokenId>& stops = sequence.stop.stop_tokens;
  for (std::size_t i = 0; i < output.sampled.size(); ++i) {
    const TokenId token = output.sampled[i].token;
    entry.tokens.push_back(output.sampled[i]);
    sequence.tokens.push_back(token);
    if (std::binary_search(stops.begin(), stops.end(), token)) {
      sequence.finished = FinishReason::kStop;
    } else if (AtLengthEnd(sequence)) {
      sequence.finished = FinishReason::kLength;
    }
    if (sequence.finished || i == drafts.size() || drafts[i] != token) return;
  }
}

absl::StatusOr<StepResult> GroupState::Complete(Step step, absl::Span<const ItemOutput> outputs,
                                                absl::Span<const std::uint64_t> copies_done) {
  if (in_flight_.empty() || in_flight_.front().step != step) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step.value(), " is not the oldest in flight"));
  }
  if (absl::Status status = CheckOutputs(in_flight_.front(), outputs); !status.ok()) return status;
  for (const std::uint64_t id : copies_done) {
    if (copies_.count(id) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("background copy ", id, " is not outstanding"));
    }
  }
  for (const std::uint64_t id : copies_done) copies_.erase(id);
  const StepWork work = std::move(in_flight_.front());
  in_flight_.erase(in_flight_.begin());
  StepResult result;
  result.copies_done.assign(copies_done.begin(), copies_done.end());
  result.epoch = epoch_;
  result.step = step;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const BatchItem& rows = work.items[i].rows;
    Sequence& sequence = *work.items[i].sequence;
    SequenceResult& entry = result.sequences.emplace_back();
    entry.sequence = rows.sequence;
    entry.first_output = rows.output_index;
    entry.drafted = rows.drafts;
    if (outputs[i].failed && (rows.drafts == 0 || outputs[i].sampled.empty())) {
      sequence.finished = FinishReason::kError;
      entry.refused = outputs[i].refused;
      entry.is_overload = outputs[i].is_overload;
    } else {
      if (!outputs[i].prompt.empty()) entry.prompt_first = rows.first_position + 1;
      entry.prompt = outputs[i].prompt;
      entry.candidates = outputs[i].candidates;
      if (rows.candidates > 0) entry.refused = outputs[i].refused;
    }
    // A sequence that failed in an earlier chunk takes no token from a later one.
    const bool goes_on = !sequence.finished;
    if (goes_on) TakeTokens(outputs[i], work.items[i].drafts, sequence, entry);
    // K and V of wrong draft tokens are not part of the sequence, nor are those of a row
    // whose mask was late. The next rows overwrite them.
    const auto tokens = static_cast<std::uint32_t>(entry.tokens.size());
    const bool no_candidates = entry.candidates.empty() && entry.refused.empty();
    const bool is_late =
        goes_on && ((rows.samples && tokens == 0) || (rows.candidates > 0 && no_candidates));
    const std::uint32_t wrong = rows.drafts - (std::max(tokens, 1u) - 1) + (is_late ? 1 : 0);
    sequence.length -= wrong;
    entry.length = rows.first_position + rows.row_count - wrong;
    if (work.items[i].ends && !sequence.finished) sequence.finished = FinishReason::kLength;
    entry.finished = sequence.finished;
  }
  for (const Sequence* sequence : work.noops) {
    SequenceResult& entry = result.sequences.emplace_back();
    entry.sequence = sequence->handle;
    entry.length = sequence->length;
    entry.first_output = sequence->outputs();
    entry.finished = sequence->finished;
    entry.noop = true;
  }
  std::sort(
      result.sequences.begin(), result.sequences.end(),
      [](const SequenceResult& a, const SequenceResult& b) { return a.sequence < b.sequence; });
  return result;
}

std::vector<Step> GroupState::Unfinished() const {
  std::vector<Step> steps;
  for (const StepWork& work : in_flight_) steps.push_back(work.step);
  return steps;
}

std::vector<SequenceHandle> GroupState::Sequences() const {
  std::vector<SequenceHandle> open;
  for (const std::unique_ptr<Sequence>& sequence : slots_) {
    if (sequence != nullptr) open.push_back(sequence->handle);
  }
  return open;
}

std::optional<SequenceView> GroupState::View(SequenceHandle handle) const {
  if (!FindOpen(handle).ok()) return std::nullopt;
  const Sequence& sequence = *slots_[handle.value()];
  SequenceView view;
  view.sequence = sequence.handle;
  view.request = sequence.request;
  view.index = sequence.index;
  view.tokens = sequence.tokens;
  view.prompt_tokens = sequence.prompt_tokens;
  view.length = sequence.length;
  view.tables.assign(sequence.tables.begin(), sequence.tables.end());
  view.last_run = sequence.last_run;
  view.decoding = sequence.decoding;
  view.draft_depth = sequence.draft_depth;
  view.finished = sequence.finished;
  return view;
}

}  // namespace flotilla::worker
