// Masks of tokens for sequences whose answers must follow a grammar. This is all that the rest of a
// worker sees of structured output.
//
//   std::shared_ptr<StepMasks> masks = room->Begin(items);  // before the step is computed
//   ...
//   MaskOutcome outcome = masks->Wait(item, row, patience);  // where the row is sampled
//
// A thread of its own computes the masks while the step is computed, and a process compiles new
// grammars (compiler.h). Both start with the first constraint, and sleep when there is nothing to
// do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/rt/clock.h"
#include "common/types/constraint.h"
#include "common/types/ids.h"
#include "worker/constraint/compiler.h"
#include "worker/constraint/matchers.h"
#include "worker/constraint/step_masks.h"
#include "worker/constraint/vocabulary.h"

namespace flotilla::worker {

struct ConstraintMasksOptions {
  ConstraintVocabulary vocabulary;
  CompilerOptions compiler;
  MatcherLimits matchers;
  // How long steps may wait in all for a sequence's masks before it is refused.
  absl::Duration late_limit = absl::Milliseconds(500);
  // A sequence has a row in one of so many steps: the micro-batches of a pipeline.
  std::uint32_t steps_per_row = 1;
  const Clock* clock = nullptr;  // must be set; outlives the ConstraintMasks
};

// One sequence that samples in a step and has a constraint. What it points to is used in Begin
// only.
struct MaskItem {
  SequenceHandle sequence;
  const Constraint* constraint = nullptr;
  absl::Span<const TokenId> outputs;  // all output tokens so far
  // Row 0 samples what comes after `outputs`, and row i what comes after i of the drafts.
  absl::Span<const TokenId> drafts;
};

class ConstraintMasks {
 public:
  // INVALID_ARGUMENT: a stop token is not in the vocabulary.
  static absl::StatusOr<std::unique_ptr<ConstraintMasks>> Create(ConstraintMasksOptions options);
  // Ends the thread and the process. Masks that are not computed are late for ever.
  ~ConstraintMasks();

  // Asks for the masks of a step's rows; `only_these`: the step has no others. It waits neither for
  // a compile nor for a mask. One thread calls it. The masks of a step that nobody holds any more
  // are not computed.
  std::shared_ptr<StepMasks> Begin(absl::Span<const MaskItem> items, bool only_these = true)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Returns for each item how many of its drafts, from the first on, the grammar allows after
  // `outputs`. It waits for that for at most `patience`, which counts as a wait for nobody's masks;
  // 0 where it is not known by then, since the masks of these rows would be late, too. The thread
  // of Begin calls it.
  std::vector<std::size_t> CheckDrafts(absl::Span<const MaskItem> items, absl::Duration patience)
      ABSL_LOCKS_EXCLUDED(mu_);

  // Has the grammar of a sequence with so many output tokens compiled, which a later Begin may
  // need. Returns whether it is being compiled. The thread of Begin calls it.
  bool Prepare(SequenceHandle sequence, const Constraint& constraint, std::size_t outputs);

 private:
  // What Begin remembers of a sequence: its grammar, which stays as long as it needs it, and whose
  // time its late masks cost. `outputs` is what the last call of any kind said, since the handle
  // has another owner when the answer becomes shorter.
  struct Known {
    std::shared_ptr<const GrammarCompiler::Entry> entry;
    std::size_t outputs = 0;
    std::uint64_t step = 0;
    std::shared_ptr<MaskLateness> lateness;
  };

  // What CheckDrafts asks of the thread.
  struct DraftCheck {
    struct Item {
      SequenceHandle sequence;
      std::shared_ptr<const GrammarCompiler::Entry> entry;
      std::vector<TokenId> outputs, drafts;
      std::shared_ptr<MaskLateness> lateness;
    };
    std::vector<Item> items;
    std::vector<std::size_t> allowed;  // [items], set by the thread
    bool done = false;                 // mu_ guards it
  };

  explicit ConstraintMasks(ConstraintMasksOptions options,
                           std::shared_ptr<const GrammarVocabulary> vocabulary);
  Known& Find(SequenceHandle sequence, const Constraint& constraint, std::size_t outputs);

  void Loop();
  bool HasWorkOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stops_ || compiled_ || !queue_.empty() || !checks_.empty();
  }
  std::size_t Check(const DraftCheck::Item& item);
  // Computes the masks of all items whose grammars are compiled. Returns whether others are left.
  bool Compute(StepMasks& step);
  void ComputeItem(StepMasks& step, std::size_t item,
                   const std::shared_ptr<const Grammar>& grammar);

  const ConstraintMasksOptions options_;
  const std::shared_ptr<const GrammarVocabulary> vocabulary_;
  const std::shared_ptr<MaskCulprit> culprit_ = std::make_shared<MaskCulprit>();

  // Only the thread of Begin uses these.
  absl::flat_hash_map<SequenceHandle, Known> known_;
  std::uint64_t step_ = 0;

  // Only the thread uses these.
  Matchers matchers_;
  std::vector<std::weak_ptr<StepMasks>> compiling_;  // steps that wait for grammars

  absl::Mutex mu_;
  bool stops_ ABSL_GUARDED_BY(mu_) = false;
  bool compiled_ ABSL_GUARDED_BY(mu_) = false;  // a constraint was since the thread looked
  std::deque<std::weak_ptr<StepMasks>> queue_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<DraftCheck>> checks_ ABSL_GUARDED_BY(mu_);
  std::thread thread_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<GrammarCompiler> compiler_;  // last: its thread calls back
};

}  // namespace flotilla::worker
