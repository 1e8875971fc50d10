#include "tests/sim/sim_worker.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/random.h"

namespace flotilla::testing {
namespace {

// Returns what the model writes at each position of a sequence. It depends on the tokens so far
// and on the sequence's cache scope, so the simulation sees when two scopes share a block.
std::vector<std::uint64_t> Written(const TokenizedRequest& request,
                                   absl::Span<const TokenId> tokens) {
  std::uint64_t hash = MixBits(std::hash<std::string>()(request.tenant) ^
                               3 * std::hash<std::string>()(request.cache_salt));
  std::vector<std::uint64_t> all;
  for (const TokenId token : tokens) {
    hash = MixBits(hash ^ (static_cast<std::uint64_t>(token) + 1));
    all.push_back(hash);
  }
  return all;
}

// The content of a slot that nobody has written.
constexpr std::uint64_t kPoison = 0xdead;

std::uint32_t MostSlots(const std::vector<KvGroup>& groups) {
  std::uint32_t most = 1;
  for (const KvGroup& group : groups) most = std::max(most, group.tokens_per_block);
  return most;
}

// What one group keeps of it.
std::uint64_t InGroup(std::uint64_t written, std::uint32_t group) {
  return written ^ group * std::uint64_t{0x9e3779b97f4a7c15};
}

}  // namespace

SimWorker::SimWorker(Epoch epoch, const ExecutorDescription& description,
                     const worker::NgramOptions& ngrams, FindClient find_client)
    : groups_(description.groups),
      lag_(description.lag),
      slots_(MostSlots(description.groups)),
      run_tokens_(description.run_tokens),
      find_client_(std::move(find_client)),
      proposer_(ngrams),
      state_(epoch, description, &proposer_),
      kv_(std::size_t{description.block_count} * slots_),
      tables_naming_(description.block_count),
      writer_(description.block_count) {
  for (const KvTier& tier : description.tiers) {
    tiers_.emplace_back(std::size_t{tier.block_count} * slots_, kPoison);
  }
}

absl::Status SimWorker::TrackBlocks(const StepPlan& plan) {
  for (const PlanOp& op : plan.ops) {
    absl::Status status;
    if (const auto* drop = std::get_if<DropSequence>(&op)) status = Track(*drop);
    if (const auto* trim = std::get_if<TrimBlocks>(&op)) status = Track(*trim);
    if (const auto* release = std::get_if<ReleaseBlocks>(&op)) status = Track(*release);
    if (const auto* open = std::get_if<OpenSequence>(&op)) status = Track(*open);
    if (const auto* grant = std::get_if<GrantBlocks>(&op)) status = Track(*grant);
    if (const auto* fork = std::get_if<ForkSequence>(&op)) status = Track(*fork);
    if (const auto* copy = std::get_if<BackgroundCopy>(&op)) status = Track(*copy);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// A block that a copy fills must not be in use.
absl::Status SimWorker::Track(const BackgroundCopy& op) {
  Copying copying{.op = op, .began = {}};
  for (const BackgroundCopy::Move& move : op.moves) {
    if (op.kind == BackgroundCopy::Kind::kOut) {
      const auto block = kv_.begin() + std::ptrdiff_t{move.block.value()} * slots_;
      copying.began.insert(copying.began.end(), block, block + slots_);
    } else if (absl::Status s = Own(SequenceHandle(~0u), move.block); !s.ok()) {
      return s;
    }
  }
  copying_.push_back(std::move(copying));
  return absl::OkStatus();
}

absl::Status SimWorker::Finish(const Copying& copying) {
  const BackgroundCopy& copy = copying.op;
  std::vector<std::uint64_t>& tier = tiers_[copy.tier];
  auto began = copying.began.begin();
  for (const BackgroundCopy::Move& move : copy.moves) {
    for (std::uint32_t at = 0; at < slots_; ++at) {
      std::uint64_t& slot = tier[std::size_t{move.slot} * slots_ + at];
      std::uint64_t& block = kv_[std::size_t{move.block.value()} * slots_ + at];
      if (copy.kind == BackgroundCopy::Kind::kIn) {
        block = slot;
      } else if (*began++ == block) {
        slot = block;
      } else {
        return absl::InternalError("invariant 6: a block was written while it was copied out");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status SimWorker::Track(const DropSequence& op) {
  for (const std::vector<BlockId>& table : tables_[op.sequence]) {
    for (const BlockId block : table) {
      if (block != kNullBlock) --tables_naming_[block.value()];
    }
  }
  tables_.erase(op.sequence);
  return absl::OkStatus();
}

absl::Status SimWorker::Track(const TrimBlocks& op) {
  std::vector<BlockId>& table = tables_[op.sequence][op.group.value()];
  if (op.count > table.size()) return absl::InternalError("a trim of blocks that are not there");
  for (std::uint32_t i = 0; i < op.count; ++i) {
    --tables_naming_[table.back().value()];
    table.pop_back();
  }
  return absl::OkStatus();
}

absl::Status SimWorker::Track(const ReleaseBlocks& op) {
  std::vector<BlockId>& table = tables_[op.sequence][op.group.value()];
  auto at =
      std::find_if(table.begin(), table.end(), [](BlockId block) { return block != kNullBlock; });
  for (std::uint32_t i = 0; i < op.count; ++i, ++at) {
    if (at == table.end()) return absl::InternalError("a release of blocks that are not there");
    --tables_naming_[at->value()];
    *at = kNullBlock;
  }
  return absl::OkStatus();
}

absl::Status SimWorker::Track(const OpenSequence& op) {
  Tables& tables = tables_[op.sequence];
  tables.resize(groups_.size());
  open_[op.sequence].assign(run_tokens_, kPoison);
  first_[op.sequence] = kPoison;
  std::vector<std::uint32_t>& left = cached_left_[op.sequence];
  left.assign(groups_.size(), 0);
  for (std::size_t g = 0; op.cached_tokens > 0 && g < groups_.size(); ++g) {
    const std::uint32_t unneeded = groups_[g].UnneededBlocks(op.cached_tokens);
    tables[g].assign(unneeded, kNullBlock);
    left[g] = op.cached_tokens / groups_[g].tokens_per_block - unneeded;
  }
  return absl::OkStatus();
}

absl::Status SimWorker::Own(SequenceHandle sequence, BlockId block) {
  if (tables_naming_[block.value()] > 0) {
    return absl::InternalError(
        absl::StrCat("invariant 6: block ", block.value(), " granted while it is in use"));
  }
  writer_[block.value()] = sequence;
  for (std::uint32_t slot = 0; slot < slots_; ++slot) {
    kv_[std::size_t{block.value()} * slots_ + slot] = kPoison;
  }
  return absl::OkStatus();
}

// A block is granted to one sequence at a time. The exception are blocks that the OpenSequence
// says are cached: they may be in other tables too.
absl::Status SimWorker::Track(const GrantBlocks& op) {
  std::uint32_t& cached = cached_left_[op.sequence][op.group.value()];
  for (const BlockId block : op.blocks) {
    if (cached > 0) {
      --cached;
    } else if (absl::Status s = Own(op.sequence, block); !s.ok()) {
      return s;
    }
    ++tables_naming_[block.value()];
    tables_[op.sequence][op.group.value()].push_back(block);
  }
  return absl::OkStatus();
}

absl::Status SimWorker::Track(const ForkSequence& op) {
  const Tables parent = tables_[op.parent];
  Tables& child = tables_[op.child];
  child.assign(groups_.size(), {});
  std::size_t copies = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::uint32_t shared = op.length / groups_[g].tokens_per_block;
    child[g].assign(parent[g].begin(), parent[g].begin() + shared);
    std::fill_n(child[g].begin(), groups_[g].UnneededBlocks(op.length), kNullBlock);
    if (op.length % groups_[g].tokens_per_block > 0) {
      if (copies == op.copies.size()) return absl::InternalError("invariant 6: a missing copy");
      const BlockId to = op.copies[copies++].to;
      if (absl::Status s = Own(op.child, to); !s.ok()) return s;
      child[g].push_back(to);
    }
    for (const BlockId block : child[g]) {
      if (block != kNullBlock) ++tables_naming_[block.value()];
    }
  }
  cached_left_[op.child].assign(groups_.size(), 0);
  return absl::OkStatus();
}

absl::Status SimWorker::Apply(const StepPlan& plan) {
  if (absl::Status s = TrackBlocks(plan); !s.ok()) return s;
  absl::StatusOr<worker::Batch> batch = state_.Apply(plan);
  if (!batch.ok()) return batch.status();
  Computing work{.step = plan.step,
                 .timings = {},
                 .outputs = std::vector<worker::ItemOutput>(batch->items.size()),
                 .idle = batch->items.empty()};
  // Rows are cheap in one step and dear in another, so that depths change.
  work.timings.rows = static_cast<std::uint32_t>(batch->tokens.size());
  work.timings.decode_rows = batch->decode_rows;
  work.timings.compute_ns = kSimStepNs + static_cast<std::int64_t>(MixBits(plan.step.value() / 64) %
                                                                   4 * (kSimMostRowNs / 3)) *
                                             work.timings.rows;
  for (const BlockCopy& copy : batch->copies) {
    for (std::uint32_t slot = 0; slot < slots_; ++slot) {
      kv_[std::size_t{copy.to.value()} * slots_ + slot] =
          kv_[std::size_t{copy.from.value()} * slots_ + slot];
    }
  }
  for (const worker::RunCopy& copy : batch->run_copies) {
    open_[copy.to] = open_[copy.from];
    first_[copy.to] = first_[copy.from];
  }
  for (const worker::FirstRow& row : batch->first_rows) {
    const SimClient& client = find_client_(state_.View(row.sequence)->request);
    first_[row.sequence] = Written(client.request(), {row.token}).front();
  }
  item_runs_.assign(batch->items.size(), {});
  // All writes come before all reads, as executors promise.
  for (std::size_t i = 0; i < batch->items.size(); ++i) {
    if (absl::Status s = WriteItem(*batch, i); !s.ok()) return s;
  }
  for (std::size_t i = 0; i < batch->items.size(); ++i) {
    if (absl::Status s = ReadItem(*batch, i, work.outputs[i]); !s.ok()) return s;
    const worker::BatchItem& rows = batch->items[i];
    const std::uint32_t end = rows.first_position + rows.row_count - rows.drafts;
    work.rows.push_back({state_.View(rows.sequence)->request, rows.first_position, end});
    const std::optional<std::uint32_t> kills = find_client_(work.rows.back().request).kills_at();
    work.fatal |= kills.has_value() && *kills >= rows.first_position && *kills < end;
  }
  for (std::size_t i = 0; run_tokens_ > 0 && i < batch->items.size(); ++i) {
    open_[batch->items[i].sequence] = std::move(item_runs_[i].back());
  }
  computing_.push_back(std::move(work));
  return absl::OkStatus();
}

std::vector<Step> SimWorker::Started() const {
  std::vector<Step> steps;
  for (const Computing& work : computing_) steps.push_back(work.step);
  return steps;
}

std::vector<RequestId> SimWorker::UnderWay() const {
  std::set<RequestId> requests;
  for (const Rows& rows : RowsUnderWay()) requests.insert(rows.request);
  return {requests.begin(), requests.end()};
}

std::vector<SimWorker::Rows> SimWorker::RowsUnderWay() const {
  std::vector<Rows> all;
  for (const Computing& work : computing_) {
    all.insert(all.end(), work.rows.begin(), work.rows.end());
  }
  return all;
}

bool SimWorker::IsFatal() const { return !computing_.empty() && computing_.front().fatal; }

std::vector<TokenId> SimWorker::TokensOf(const worker::Batch& batch, std::size_t item) const {
  const worker::BatchItem& rows = batch.items[item];
  const worker::SequenceView view = *state_.View(rows.sequence);
  const auto known = view.tokens.first(rows.first_position + rows.row_count - rows.drafts);
  std::vector<TokenId> tokens(known.begin(), known.end());
  const auto end = batch.tokens.begin() + rows.row_begin + rows.row_count;
  tokens.insert(tokens.end(), end - rows.drafts, end);
  return tokens;
}

absl::Status SimWorker::Refuse(const StepPlan& plan) {
  const std::uint64_t digest = state_.digest();
  const Step step = state_.step();
  const absl::Status status = state_.Apply(plan).status();
  if (!absl::IsFailedPrecondition(status)) {
    return absl::InternalError(absl::StrCat("invariant 9: a plan not refused: ", status.message()));
  }
  if (state_.digest() != digest || state_.step() != step) {
    return absl::InternalError("invariant 9: a refused plan had an effect");
  }
  return absl::OkStatus();
}

std::size_t SimWorker::SlotOf(const worker::Batch& batch, std::size_t item, std::uint32_t group,
                              std::uint32_t position) const {
  const std::uint32_t tokens = groups_[group].tokens_per_block;
  const std::int32_t block = batch.table(item, GroupIndex(group))[position / tokens];
  return static_cast<std::size_t>(block) * slots_ + position % tokens;
}

absl::Status SimWorker::WriteItem(const worker::Batch& batch, std::size_t item) {
  const worker::BatchItem& rows = batch.items[item];
  const worker::SequenceView view = *state_.View(rows.sequence);
  const SimClient& client = find_client_(view.request);
  const std::uint32_t end = rows.first_position + rows.row_count;
  const std::vector<std::uint64_t> written = Written(client.request(), TokensOf(batch, item));
  for (std::uint32_t position = rows.first_position; position < end; ++position) {
    const TokenId token = batch.tokens[rows.row_begin + position - rows.first_position];
    const bool beam = client.request().beam.has_value();
    const bool draft = position >= end - rows.drafts;
    if (!draft && token != (beam ? view.tokens[position] : client.TokenAt(rows.index, position))) {
      return absl::InternalError("a row has a wrong token");
    }
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].kind == KvGroup::Kind::kState) continue;
      const std::size_t slot = SlotOf(batch, item, g, position);
      if (slot < slots_) return absl::InternalError("invariant 6: a write to the null block");
      if (writer_[slot / slots_] != rows.sequence) {
        return absl::InternalError("invariant 6: a write to a block that is not its own");
      }
      if (run_tokens_ == 0) kv_[slot] = InGroup(written[position], g);
    }
    if (run_tokens_ > 0) WriteToRun(batch, item, position, written[position]);
    if (position == 0) first_[rows.sequence] = written[0];
  }
  return absl::OkStatus();
}

void SimWorker::WriteToRun(const worker::Batch& batch, std::size_t item, std::uint32_t position,
                           std::uint64_t written) {
  std::vector<OpenRun>& runs = item_runs_[item];
  const std::uint32_t slot = position % run_tokens_;
  const worker::BatchItem& rows = batch.items[item];
  if (slot == 0 || runs.empty()) {
    runs.push_back(slot == 0 ? OpenRun(run_tokens_, kPoison) : open_[rows.sequence]);
  }
  runs.back()[slot] = written;
  if (slot + 1 < run_tokens_) return;
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const std::size_t begin = SlotOf(batch, item, g, position - slot);
    for (std::uint32_t i = 0; i < run_tokens_; ++i) kv_[begin + i] = InGroup(runs.back()[i], g);
  }
}

bool SimWorker::Sees(const worker::Batch& batch, std::size_t item, std::uint32_t group,
                     std::uint32_t position, std::uint64_t written) const {
  const worker::BatchItem& rows = batch.items[item];
  const bool in_block = kv_[SlotOf(batch, item, group, position)] == InGroup(written, group);
  if (run_tokens_ == 0) return in_block;
  const std::uint32_t first = rows.first_position / run_tokens_, run = position / run_tokens_;
  const std::uint32_t last = (rows.first_position + rows.row_count - 1) / run_tokens_;
  // Rows of later runs look in the block, those of the same run in that.
  const bool in_run =
      run < first || item_runs_[item][run - first][position % run_tokens_] == written;
  return in_run && (run == last || in_block);
}

// For one token in four of a request with a constraint: once, or for one of four of these more
// often.
bool SimWorker::MaskIsLate(const worker::BatchItem& rows, std::uint32_t at) {
  if (!rows.sampling->constraint) return false;
  const std::uint32_t index = rows.output_index + at;
  const std::uint64_t bits = MixBits(rows.sampling->seed ^ MixBits(index));
  if (bits % 4 != 0) return false;
  const std::uint64_t times = bits / 4 % 4 == 0 ? 1 + bits / 16 % kMostLate : 1;
  LateMask& late = late_[rows.sequence];
  if (late.at != index + 1) late = {.at = index + 1};
  return late.times++ < times;
}

absl::Status SimWorker::ReadItem(const worker::Batch& batch, std::size_t item,
                                 worker::ItemOutput& output) {
  const worker::BatchItem& rows = batch.items[item];
  const worker::SequenceView view = *state_.View(rows.sequence);
  const SimClient& client = find_client_(view.request);
  const std::uint64_t seed = client.request().sampling.seed;
  const std::uint32_t end = rows.first_position + rows.row_count;
  const std::vector<std::uint64_t> written = Written(client.request(), TokensOf(batch, item));
  if (run_tokens_ > 0 && first_.at(rows.sequence) != written[0]) {
    return absl::InternalError("position 0 of an open run is not its sequence's own");
  }
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].kind == KvGroup::Kind::kState) continue;
    // The first row sees the positions of its window, or all.
    const bool window = groups_[g].kind == KvGroup::Kind::kWindow;
    const std::uint32_t seen = window ? groups_[g].window - 1 : rows.first_position;
    for (std::uint32_t position = rows.first_position - std::min(seen, rows.first_position);
         position < end; ++position) {
      if (!Sees(batch, item, g, position, written[position])) {
        return absl::InternalError(absl::StrCat("KV of request ", client.request().id.counter,
                                                " group ", g, " position ", position,
                                                " is not its own"));
      }
    }
  }
  for (std::uint32_t at = 0; rows.samples && at <= rows.drafts; ++at) {
    if (MaskIsLate(rows, at)) break;
    output.sampled.push_back(
        {.token = SimToken(SequenceSeed(seed, rows.index), rows.output_index + at)});
  }
  if (rows.candidates > 0 && !MaskIsLate(rows, 0)) {
    output.candidates = SimCandidates(view.tokens.first(end), rows.candidates,
                                      static_cast<bool>(rows.sampling->constraint));
    if (output.candidates.empty()) output.refused = "a dead end";
  }
  std::uint32_t index = rows.first_position + 1;
  for (const TokenId token : rows.prompt_targets) {
    output.prompt.push_back({.token = token, .logprob = SimPromptLogprob(seed, index++, token)});
  }
  return absl::OkStatus();
}

absl::StatusOr<SimResult> SimWorker::Complete(std::size_t copies) {
  const Computing work = std::move(computing_.front());
  computing_.pop_front();
  std::vector<std::uint64_t> done;
  const std::size_t wanted = work.idle ? copying_.size() : std::min(copies, copying_.size());
  while (done.size() < wanted) {
    if (absl::Status s = Finish(copying_.front()); !s.ok()) return s;
    done.push_back(copying_.front().op.id);
    copying_.pop_front();
  }
  absl::StatusOr<StepResult> result = state_.Complete(work.step, work.outputs, done);
  if (!result.ok()) return result.status();
  result->timings = work.timings;
  SimResult out{.result = *std::move(result), .marks = {}};
  for (const SequenceResult& sequence : out.result.sequences) {
    const std::optional<worker::SequenceView> view = state_.View(sequence.sequence);
    if (!view.has_value()) continue;  // dropped by a plan applied meanwhile
    out.marks.push_back({.sequence = sequence.sequence,
                         .request = view->request,
                         .length = sequence.length,
                         .tokens = view->tokens.size(),
                         .finished = view->finished.has_value()});
  }
  return out;
}

}  // namespace flotilla::testing
