// SimWorker: one worker group of the simulation. It has the real worker/core, a model
// that is a pure function, and KV memory in which every slot remembers what was
// written, so that a sequence notices when its block is reused too early.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/types/executor.h"
#include "common/types/plan.h"
#include "tests/sim/sim_client.h"
#include "worker/core/group_state.h"
#include "worker/core/ngram_proposer.h"

namespace flotilla::testing {

// The state of a sequence in worker/core when a result was made.
struct SimSequenceMark {
  SequenceHandle sequence;
  RequestId request;
  std::uint32_t length = 0;
  std::size_t tokens = 0;
  bool finished = false;
};

struct SimResult {
  StepResult result;
  std::vector<SimSequenceMark> marks;  // of the sequences in the result
};

// The time of a step without rows, and the most that a row costs.
inline constexpr std::int64_t kSimStepNs = 5000, kSimMostRowNs = 1500;

class SimWorker {
 public:
  using FindClient = std::function<const SimClient&(const RequestId&)>;

  // How often the mask of one token may be late.
  static constexpr std::uint32_t kMostLate = 10;

  // `ngrams`: how draft tokens are made, if the description allows them.
  SimWorker(Epoch epoch, const ExecutorDescription& description, const worker::NgramOptions& ngrams,
            FindClient find_client);

  const worker::GroupState& state() const { return state_; }
  bool CanApply() const { return computing_.size() < lag_; }
  bool CanComplete() const { return !computing_.empty(); }

  // Positions of a sequence that a step runs, without those of draft tokens.
  struct Rows {
    RequestId request;
    std::uint32_t begin = 0, end = 0;
  };
  // The steps that were applied and are not complete, the requests and the rows that they run, and
  // whether the oldest step runs a position that kills the group.
  std::vector<Step> Started() const;
  std::vector<RequestId> UnderWay() const;
  std::vector<Rows> RowsUnderWay() const;
  bool IsFatal() const;

  // Applies the plan and runs its forward. Any error is a failed test.
  absl::Status Apply(const StepPlan& plan);
  // Applies a plan that the group must refuse, because it has another epoch or is not the
  // next step. An error: the group did not refuse the plan, or the plan had an effect.
  absl::Status Refuse(const StepPlan& plan);
  // The result of the oldest applied step. `copies` is how many background copies have
  // ended by then, oldest first. All have ended if there is nothing else to do, as
  // executors promise.
  absl::StatusOr<SimResult> Complete(std::size_t copies);

 private:
  struct Computing {
    Step step;
    StepTimings timings;
    std::vector<worker::ItemOutput> outputs;
    bool idle = false;       // nothing was computed
    std::vector<Rows> rows;  // of the items
    bool fatal = false;
  };
  using Tables = std::vector<std::vector<BlockId>>;  // [groups]

  absl::Status TrackBlocks(const StepPlan& plan);
  absl::Status Track(const OpenSequence& op);
  absl::Status Track(const GrantBlocks& op);
  absl::Status Track(const ForkSequence& op);
  absl::Status Track(const DropSequence& op);
  absl::Status Track(const BackgroundCopy& op);
  // A background copy, and what the blocks that it copies out held when its plan came.
  struct Copying {
    BackgroundCopy op;
    std::vector<std::uint64_t> began;  // [moves, slots]
  };
  // Does a background copy, as late as it is allowed. The blocks that it copies out must still be
  // as they were when it began.
  absl::Status Finish(const Copying& copying);
  absl::Status Track(const TrimBlocks& op);
  absl::Status Track(const ReleaseBlocks& op);
  // From now on only this sequence may write to `block`.
  absl::Status Own(SequenceHandle sequence, BlockId block);
  absl::Status WriteItem(const worker::Batch& batch, std::size_t item);
  // Writes a row to the item's open run, and the run to its blocks when it is full.
  void WriteToRun(const worker::Batch& batch, std::size_t item, std::uint32_t position,
                  std::uint64_t written);
  // Whether the item's rows find this where they look for it.
  bool Sees(const worker::Batch& batch, std::size_t item, std::uint32_t group,
            std::uint32_t position, std::uint64_t written) const;
  // Whether the mask for token `at` of the item's constraint, if it has one, is late.
  bool MaskIsLate(const worker::BatchItem& rows, std::uint32_t at);
  absl::Status ReadItem(const worker::Batch& batch, std::size_t item, worker::ItemOutput& output);
  // The tokens of the item's sequence up to its last row, draft tokens included.
  std::vector<TokenId> TokensOf(const worker::Batch& batch, std::size_t item) const;
  std::size_t SlotOf(const worker::Batch& batch, std::size_t item, std::uint32_t group,
                     std::uint32_t position) const;

  // The last output token whose mask was late.
  struct LateMask {
    std::uint32_t at = 0;     // its index, and one more
    std::uint64_t times = 0;  // that it was asked for
  };
  std::map<SequenceHandle, LateMask> late_;
  const std::vector<KvGroup> groups_;
  const std::uint32_t lag_;
  const std::uint32_t slots_;  // of a block, in every group
  const std::uint32_t run_tokens_;
  const FindClient find_client_;
  worker::NgramProposer proposer_;
  worker::GroupState state_;
  std::deque<Computing> computing_;
  // [blocks, slots]: a hash of the group, the scope and all tokens up to the one written
  std::vector<std::uint64_t> kv_;
  std::vector<std::vector<std::uint64_t>> tiers_;  // [tiers][blocks, slots]
  using OpenRun = std::vector<std::uint64_t>;      // [slots]: what Written says
  std::map<SequenceHandle, OpenRun> open_;         // of each sequence, the run of its last row
  std::map<SequenceHandle, std::uint64_t> first_;  // of each sequence, its position 0
  std::vector<std::vector<OpenRun>> item_runs_;  // [items of the step] from its first row's run on
  std::deque<Copying> copying_;
  std::vector<std::uint32_t> tables_naming_;                          // [blocks]
  std::vector<SequenceHandle> writer_;                                // [blocks] while in use
  std::map<SequenceHandle, Tables> tables_;                           // open sequences
  std::map<SequenceHandle, std::vector<std::uint32_t>> cached_left_;  // [groups] to be granted
};

}  // namespace flotilla::testing
