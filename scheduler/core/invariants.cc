#include "scheduler/core/invariants.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/types/kv_needs.h"

namespace flotilla::scheduler {
namespace {

#define FLOTILLA_HOLDS(condition, number, what)                                   \
  do {                                                                            \
    if (!(condition)) {                                                           \
      return absl::InternalError(                                                 \
          absl::StrCat("invariant ", number, ": ", what, " (", #condition, ")")); \
    }                                                                             \
  } while (false)

// The blocks that the non-preemptible requests which run may still need.
std::uint64_t KeptBlocks(const CoreState& state) {
  std::uint64_t kept = 0;
  for (const TableIndex index : state.requests.Indices()) {
    const Request& request = state.requests[index];
    if (!request.admitted || !request.non_preemptible()) continue;
    std::map<BlockId, std::uint32_t> names;
    std::set<BlockId> held, in_windows;
    for (const TableIndex at : request.sequences) {
      const auto& tables = state.epoch->kv.TablesOf(state.sequences[at]);
      for (std::size_t g = 0; g < tables.size(); ++g) {
        const bool window = state.description->groups[g].kind == KvGroup::Kind::kWindow;
        for (const BlockId block : tables[g]) {
          ++names[block];
          (window ? in_windows : held).insert(block);
        }
      }
    }
    // What another request shares does not come back when this one has seen the last of it.
    std::uint64_t secure = held.size();
    for (const BlockId block : in_windows) {
      secure += block != kNullBlock && state.epoch->kv.pool().tables(block) == names[block];
    }
    // What was shared by a sequence that has ended is still in the tables of others, or available.
    if (const Sequence* first = state.OpensFirst(request)) {
      secure += state.epoch->kv.FindPrefixAnew(*first, request).shared();
    }
    const std::uint64_t most = state.MostBlocks(request);
    kept += most - std::min(most, secure);
  }
  return kept;
}

// 4. Tables have entries up to what was allocated. Those of a window group name nothing that the
// next row does not need, all that rows to come need, and no more than is reserved for it.
absl::Status CheckTables(const CoreState& state, const Sequence& sequence) {
  const LengthBounds& length = sequence.length;
  const auto& tables = state.epoch->kv.TablesOf(sequence);
  const Request& request = state.RequestOf(sequence);
  const bool alone = request.answers == 1 && request.beam == nullptr;
  for (std::size_t g = 0; g < tables.size(); ++g) {
    const KvGroup& group = state.description->groups[g];
    FLOTILLA_HOLDS(tables[g].size() == TableEntries(group, length.allocated), 4,
                   "blocks cover scheduled_max");
    if (group.kind != KvGroup::Kind::kWindow) continue;
    const auto first = std::find_if(tables[g].begin(), tables[g].end(),
                                    [](BlockId block) { return block != kNullBlock; });
    const auto front = static_cast<std::uint64_t>(first - tables[g].begin());
    FLOTILLA_HOLDS(front <= group.UnneededBlocks(length.computed_min), 4,
                   "blocks that the next row sees");
    const std::uint32_t slack = RowsOfPlans(*state.description);
    FLOTILLA_HOLDS(!alone || tables[g].size() - front <= MostNamed(group, length.allocated, slack),
                   4, "blocks in a window");
  }
  return absl::OkStatus();
}

// 1. Every block is free, cached or used; references equal the tables naming it.
absl::Status CheckBlocks(const CoreState& state) {
  const BlockPool& pool = state.epoch->kv.pool();
  FLOTILLA_HOLDS(pool.free() + pool.cached() + pool.used() == pool.total(), 1, "block counts");
  std::vector<std::uint32_t> named(std::size_t{pool.total()} + 1, 0);
  for (const TableIndex index : state.running) {
    const auto& tables = state.epoch->kv.TablesOf(state.sequences[index]);
    for (std::size_t g = 0; g < tables.size(); ++g) {
      const bool window = state.description->groups[g].kind == KvGroup::Kind::kWindow;
      auto block_at = tables[g].begin();
      while (window && block_at != tables[g].end() && *block_at == kNullBlock) ++block_at;
      for (; block_at != tables[g].end(); ++block_at) {
        const BlockId block = *block_at;
        FLOTILLA_HOLDS(block != kNullBlock && block.value() <= pool.total(), 1, "a block's id");
        ++named[block.value()];
      }
    }
  }
  const std::uint64_t available = pool.available() + state.epoch->kv.HeldByCopies();
  FLOTILLA_HOLDS(available >= KeptBlocks(state), 7, "blocks kept for the non-preemptible");
  for (const BlockId block : state.epoch->kv.CopiedBlocks()) ++named[block.value()];
  std::uint32_t used = 0;
  for (std::uint32_t block = 0; block < named.size(); ++block) {
    FLOTILLA_HOLDS(pool.references(BlockId(block)) == named[block], 1,
                   absl::StrCat("references of block ", block));
    used += named[block] > 0;
  }
  FLOTILLA_HOLDS(used == pool.used(), 1, "blocks used");
  const absl::Status index = state.epoch->kv.CheckIndex();
  FLOTILLA_HOLDS(index.ok(), 1, index.message());
  return absl::OkStatus();
}

// 2. A request is in the queue or open, and its sequences with it.
absl::Status CheckRequest(const CoreState& state, TableIndex index) {
  const Request& request = state.requests[index];
  FLOTILLA_HOLDS(state.waiting.Contains(index) != request.admitted, 2, "waiting queue");
  FLOTILLA_HOLDS(state.expiries.Contains(index) == request.expires_ns.has_value(), 2, "expiries");
  FLOTILLA_HOLDS(!request.sequences.empty(), 2, "a request without sequences");
  FLOTILLA_HOLDS(request.sequences.size() <= request.width(), 3, "sequences of a request");
  FLOTILLA_HOLDS(request.preemptions <= state.options.max_preemptions, 7, "preemptions");
  FLOTILLA_HOLDS(request.overtaken_rows <= state.MaxOvertakenRows(), 7, "overtaken rows");
  const auto& quarantined = state.quarantine.requests;
  FLOTILLA_HOLDS(std::count(quarantined.begin(), quarantined.end(), index) == request.quarantined,
                 2, "quarantined requests");
  const Sequence* previous = nullptr;
  for (const TableIndex at : request.sequences) {
    const Sequence& sequence = state.sequences[at];
    FLOTILLA_HOLDS(sequence.request == index, 2, "owner of a sequence");
    FLOTILLA_HOLDS(previous == nullptr || previous->index < sequence.index, 2,
                   "order of sequences");
    previous = &sequence;
    FLOTILLA_HOLDS((sequence.state == SequenceState::kWaiting) != request.admitted, 2,
                   "sequence state");
    const auto in_running = std::count(state.running.begin(), state.running.end(), at);
    FLOTILLA_HOLDS(in_running == (request.admitted ? 1 : 0), 2, "running list");
    FLOTILLA_HOLDS(sequence.open() || !state.epoch || state.epoch->kv.TablesOf(sequence).empty(), 2,
                   "blocks of a sequence not open");
    FLOTILLA_HOLDS(state.OutputTokens(sequence) <= request.stop.max_tokens, 4, "output tokens");
    if (sequence.open() || !sequence.fork.parent.has_value()) continue;
    const auto parent =
        std::find(request.sequences.begin(), request.sequences.end(), *sequence.fork.parent);
    FLOTILLA_HOLDS(parent != request.sequences.end(), 2, "parent of a fork");
    FLOTILLA_HOLDS(
        sequence.fork.length > 0 && sequence.fork.length < sequence.tokens.size() &&
            std::equal(sequence.tokens.begin(), sequence.tokens.begin() + sequence.fork.length,
                       state.sequences[*parent].tokens.begin()),
        2, "tokens of a fork");
  }
  return absl::OkStatus();
}

// 2. Each tenant is charged for as many requests as it has.
absl::Status CheckTenants(const CoreState& state) {
  std::map<TableIndex, std::uint32_t> requests;
  for (const TableIndex index : state.requests.Indices()) ++requests[state.requests[index].tenant];
  for (const auto& [tenant, count] : requests) {
    FLOTILLA_HOLDS(state.fair.requests(tenant) == count, 2, "requests of a tenant");
  }
  FLOTILLA_HOLDS(state.fair.requests() == state.requests.size(), 2, "requests of all tenants");
  return absl::OkStatus();
}

// 2. The lists hold what belongs in them. At most lag + 1 plans are unanswered,
// and a sequence decodes in one of lag plans.
absl::Status CheckMembership(const CoreState& state) {
  std::uint64_t outstanding = 0, reserved = 0;
  std::size_t waiting = 0, waiting_tokens = 0, waiting_rows = 0, sequences = 0;
  for (const TableIndex index : state.requests.Indices()) {
    if (absl::Status s = CheckRequest(state, index); !s.ok()) return s;
    const Request& request = state.requests[index];
    waiting += !request.admitted;
    waiting_tokens += request.waiting_tokens;
    waiting_rows += request.waiting_rows;
    reserved += request.admitted ? request.width() : 0;
    sequences += request.sequences.size();
    for (const TableIndex at : request.sequences) {
      const Sequence& sequence = state.sequences[at];
      outstanding += sequence.tokens.size() -
                     std::max(sequence.length.computed, sequence.fork.length) +
                     state.ExpectedOutputs(sequence);
    }
  }
  FLOTILLA_HOLDS(outstanding == state.outstanding_tokens, 2, "outstanding tokens");
  FLOTILLA_HOLDS(waiting == state.waiting.size(), 2, "waiting count");
  FLOTILLA_HOLDS(waiting_tokens == state.waiting.tokens(), 2, "waiting tokens");
  FLOTILLA_HOLDS(waiting_rows == state.waiting.rows(), 2, "waiting rows");
  FLOTILLA_HOLDS(sequences == state.sequences.size(), 2, "sequence count");
  FLOTILLA_HOLDS(reserved == state.reserved_sequences, 2, "reserved sequences");
  const auto before = [&state](TableIndex a, TableIndex b) {
    const Sequence& x = state.sequences[a];
    const Sequence& y = state.sequences[b];
    if (x.request == y.request) return x.index < y.index;
    return GoesBefore(state.RequestOf(x), state.RequestOf(y));
  };
  FLOTILLA_HOLDS(std::is_sorted(state.running.begin(), state.running.end(), before), 2,
                 "order of the running list");
  return absl::OkStatus();
}

// 2 and 3 for the plans in flight: budgets, and one decode in lag plans.
absl::Status CheckPlansInFlight(const CoreState& state) {
  const EpochState& epoch = *state.epoch;
  const std::uint32_t lag = state.description->lag;
  FLOTILLA_HOLDS(epoch.in_flight.size() <= lag + 1, 2, "plans in flight");
  std::vector<std::uint64_t> last_decode(state.description->max_sequences, 0);
  Step previous(epoch.last_step.value() - epoch.in_flight.size());
  for (const PlanInFlight& plan : epoch.in_flight) {
    FLOTILLA_HOLDS(plan.step.value() == previous.value() + 1, 2, "steps without gaps");
    previous = plan.step;
    std::uint32_t rows = 0;
    for (const PlannedRun& run : plan.runs) {
      rows += run.most;
      const std::optional<TableIndex> index = epoch.handles.Live(run.handle, plan.step);
      if (!index.has_value()) continue;
      FLOTILLA_HOLDS(
          run.most == 0 || plan.step != epoch.last_step || !state.sequences[*index].deferred, 7,
          "a sequence that ran was not deferred");
      if (run.chunk) continue;
      std::uint64_t& last = last_decode[run.handle.value()];
      FLOTILLA_HOLDS(last == 0 || plan.step.value() >= last + lag, 2, "decodes of one sequence");
      last = plan.step.value();
    }
    FLOTILLA_HOLDS(rows <= state.MaxStepTokens(), 3, "token budget");
    FLOTILLA_HOLDS(plan.runs.size() <= state.options.max_seqs, 3, "sequence budget");
  }
  return absl::OkStatus();
}

// 3 and 4. computed <= scheduled_max <= max; the tables cover scheduled_max and waste at
// most one block less one slot; the difference of the bounds is in flight.
absl::Status CheckBounds(const CoreState& state) {
  const EpochState& epoch = *state.epoch;
  FLOTILLA_HOLDS(state.running.size() <= state.reserved_sequences &&
                     state.reserved_sequences <= state.MaxRunning(),
                 3, "sequence budget");
  std::vector<std::uint32_t> in_flight(state.description->max_sequences, 0);
  std::vector<std::uint32_t> surely(state.description->max_sequences, 0);
  for (const PlanInFlight& plan : epoch.in_flight) {
    for (const PlannedRun& run : plan.runs) {
      if (epoch.handles.Live(run.handle, plan.step).has_value()) {
        in_flight[run.handle.value()] += run.most;
        surely[run.handle.value()] += run.least;
      }
    }
  }
  std::vector<std::uint32_t> micro_batches(epoch.micro_batch_sizes.size(), 0);
  std::size_t open = 0;
  for (const TableIndex index : state.running) {
    const Sequence& sequence = state.sequences[index];
    if (!sequence.open()) continue;
    ++open;
    const LengthBounds& length = sequence.length;
    FLOTILLA_HOLDS(length.computed <= length.computed_min &&
                       length.computed_min <= length.scheduled_max &&
                       length.scheduled_max <= length.allocated && length.allocated <= length.max,
                   4, "bounds");
    const std::uint32_t most = in_flight[sequence.handle.value()];
    const std::uint32_t least = surely[sequence.handle.value()];
    FLOTILLA_HOLDS(length.scheduled_max == std::min(length.computed + most, length.max) &&
                       length.computed_min == std::min(length.computed + least, length.max),
                   4, "bounds and plans in flight");
    // Without draft tokens a sequence wastes less than a block. The blocks of wrong draft
    // tokens stay until another sequence needs them.
    const bool drafts = state.MaxDraftTokens() > 0 || sequence.constrained;
    FLOTILLA_HOLDS(drafts || (length.computed_min == length.scheduled_max &&
                              length.scheduled_max == length.allocated),
                   4, "bounds without draft tokens");
    if (absl::Status s = CheckTables(state, sequence); !s.ok()) return s;
    FLOTILLA_HOLDS(epoch.handles.Live(sequence.handle, epoch.last_step) == index, 2, "its handle");
    ++micro_batches[sequence.micro_batch];
  }
  FLOTILLA_HOLDS(micro_batches == epoch.micro_batch_sizes, 2, "micro_batch sizes");
  FLOTILLA_HOLDS(
      epoch.handles.free() + epoch.handles.retired() + open == state.description->max_sequences, 2,
      "handles");
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckInvariants(const CoreState& state) {
  if (absl::Status s = CheckMembership(state); !s.ok()) return s;
  if (absl::Status s = CheckTenants(state); !s.ok()) return s;
  if (!state.epoch.has_value()) {
    FLOTILLA_HOLDS(state.running.empty(), 2, "open sequences without a worker group");
    return absl::OkStatus();
  }
  if (absl::Status s = CheckBlocks(state); !s.ok()) return s;
  if (absl::Status s = CheckPlansInFlight(state); !s.ok()) return s;
  return CheckBounds(state);
}

}  // namespace flotilla::scheduler
