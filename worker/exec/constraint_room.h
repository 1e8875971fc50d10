// ConstraintRoom: where a rank gets the masks of its constrained rows.
//
// It reads the model's tokenizer when the first constraint comes, on a thread of its own. Until it
// has, and while a grammar is compiled, masks are late.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/rt/clock.h"
#include "model/checkpoint.h"
#include "worker/compute/row_masks.h"
#include "worker/constraint/compile_messages.h"
#include "worker/constraint/constraint_masks.h"
#include "worker/core/group_state.h"
#include "worker/core/proposer.h"

namespace flotilla::worker {

class ConstraintRoom {
 public:
  // `program` is that which compiles grammars (CompilerOptions::program), within `limits`. `clock`
  // outlives the room. `micro_batches`: of the pipeline.
  ConstraintRoom(std::shared_ptr<const model::Checkpoint> file, std::string program,
                 CompileLimits limits, std::uint32_t micro_batches, const Clock& clock)
      : file_(std::move(file)),
        program_(std::move(program)),
        limits_(limits),
        micro_batches_(micro_batches),
        clock_(clock) {}
  ~ConstraintRoom();
  ConstraintRoom(const ConstraintRoom&) = delete;
  ConstraintRoom& operator=(const ConstraintRoom&) = delete;

  // The masks of the rows that sample, of these items of a batch, ascending, which all have
  // constraints. They are numbered as `items` is, which may be empty. The grammars of other items,
  // whose rows other ranks draw or that give a token soon, are compiled, too. The batch is not
  // needed afterwards. It waits for at most 20 ms where this step and the one before it have
  // nothing to compute but rows that all wait for grammars, unless that would delay another
  // micro-batch. One thread calls it.
  std::shared_ptr<RowMasks> Begin(const Batch& batch, absl::Span<const std::size_t> items);

  // Returns for each of these requests, which have constraints, how many of its drafts the grammar
  // allows (ConstraintMasks::CheckDrafts). It waits for at most 1 ms. The thread of Begin calls it.
  std::vector<std::size_t> CheckDrafts(absl::Span<const DraftRequest* const> requests);

  // Whether there was a constraint. From then on Begin is called for every step, so that what ended
  // answers leave is dropped.
  bool was_used() const { return opener_.joinable(); }

 private:
  absl::StatusOr<std::unique_ptr<ConstraintMasks>> Open() const;

  const std::shared_ptr<const model::Checkpoint> file_;
  const std::string program_;
  const CompileLimits limits_;
  const std::uint32_t micro_batches_;
  const Clock& clock_;
  std::thread opener_;
  bool was_only_constrained_ = false;  // the last step, in Begin
  absl::Mutex mu_;
  bool is_open_ ABSL_GUARDED_BY(mu_) = false;
  // Set once it is open. The error says that no constraint can be followed.
  absl::StatusOr<std::unique_ptr<ConstraintMasks>> masks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::worker
