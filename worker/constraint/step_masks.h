// The masks of one step. ConstraintMasks makes it and fills it; whoever samples waits for its rows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/rt/clock.h"
#include "common/types/ids.h"
#include "worker/constraint/compiler.h"

namespace flotilla::worker {

struct MaskOutcome {
  enum class State : std::uint8_t {
    kReady,    // the row may be sampled
    kLate,     // there is no mask yet, so the row is for a later step
    kRefused,  // there will be none
  };
  State state = State::kLate;
  bool was_awaited = false;  // kLate: Wait has waited for it
  // kReady: bit t % 32 of word t / 32 says whether token t is allowed; the words of the vocabulary,
  // with 0 behind its last token. It lives as long as the StepMasks.
  absl::Span<const std::uint32_t> allowed;
  // kRefused: one sentence of at most 160 bytes for the client. RESOURCE_EXHAUSTED: a later try may
  // succeed; with other codes the constraint is at fault. NOT_FOUND: it allows no next token.
  absl::Status refusal;
};

// How long steps have waited for the masks of one sequence, or could have.
struct MaskLateness {
  std::atomic<std::int64_t> ns = 0;
  // The place in the answer, plus one, whose mask was last waited for in vain, and when that was,
  // by the clock and in rounds (StepMasks).
  std::atomic<std::size_t> late_at = 0;
  std::atomic<std::int64_t> late_ns = 0;
  std::atomic<std::uint64_t> late_round = 0;
  std::atomic<bool> is_over = false;  // it was refused for this
};

// The sequence whose masks are being computed: a wait that ends without a mask is its doing,
// whoever waits. Any thread.
class MaskCulprit {
 public:
  // Null: none. What was before `round`, in which its masks were asked for, is not its doing.
  void Set(std::shared_ptr<MaskLateness> culprit, std::uint64_t round = 0) ABSL_LOCKS_EXCLUDED(mu_);
  // A step of this round has waited in vain.
  void Charge(std::int64_t ns, std::uint64_t round) ABSL_LOCKS_EXCLUDED(mu_);
  // What `Charge` may take for rounds up to `round` that could have waited, `round_ns` each: those
  // after `late_round` that were not charged before, and no longer than `late_ns`.
  std::int64_t Unwaited(std::uint64_t late_round, std::uint64_t round, std::int64_t round_ns,
                        std::int64_t late_ns) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  std::shared_ptr<MaskLateness> culprit_ ABSL_GUARDED_BY(mu_);
  std::uint64_t charged_round_ ABSL_GUARDED_BY(mu_) = 0;  // the last one, or before `round` of Set
};

// Any thread.
class StepMasks {
 public:
  // Waits at most `patience` for the mask of row `row` of the item that Begin had at place `item`.
  // It does not wait for a grammar that is being compiled, and if the step has other rows, not for
  // a mask that an earlier step has waited for in vain: that counts as a wait all the same, and so
  // do rounds that leave the sequence out. The rows behind a draft that the grammar does not allow
  // have masks without a bit, and nothing must come of them.
  MaskOutcome Wait(std::size_t item, std::size_t row, absl::Duration patience);
  // Waits at most `patience` while all grammars of the step are being compiled.
  void AwaitGrammars(absl::Duration patience) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class ConstraintMasks;
  // What stays as Begin has made it, but for the words of the masks.
  struct Item {
    SequenceHandle sequence;
    std::shared_ptr<const GrammarCompiler::Entry> entry;
    std::vector<TokenId> outputs, drafts;
    std::shared_ptr<MaskLateness> lateness;
    std::unique_ptr<std::uint32_t[]> masks;  // [drafts + 1, words]
  };
  // How far an item is.
  struct Progress {
    bool compiling = false;
    std::size_t ready = 0;  // rows that are filled, which nobody writes any more
    absl::Status refusal;
  };
  // What of an item a Wait waits for.
  struct Wanted {
    const Progress& item;
    const std::size_t row;
    bool Decided() const { return item.ready > row || item.compiling || !item.refusal.ok(); }
  };

  // [items] of each; words of a mask. In each round of steps a sequence may have rows in one.
  StepMasks(std::vector<Item> items, std::vector<Progress> progress, bool has_others,
            std::size_t words, std::uint64_t round, absl::Duration compile_limit,
            absl::Duration late_limit, const Clock& clock, std::shared_ptr<MaskCulprit> culprit)
      : has_others_(has_others),
        words_(words),
        round_(round),
        compile_limit_(compile_limit),
        late_limit_(late_limit),
        clock_(clock),
        culprit_(std::move(culprit)),
        items_(std::move(items)),
        progress_(std::move(progress)) {}

  void Charge(std::int64_t waited_ns) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsLateForGood(const Item& item) const;
  absl::Span<std::uint32_t> Row(std::size_t item, std::size_t row) {
    return absl::MakeSpan(items_[item].masks.get() + row * words_, words_);
  }
  // Whether there is nothing more to do for an item.
  bool IsOver(std::size_t item) ABSL_LOCKS_EXCLUDED(mu_);
  // Says that one more row is filled.
  void AddReady(std::size_t item) ABSL_LOCKS_EXCLUDED(mu_);
  void SetCompiling(std::size_t item, bool compiling) ABSL_LOCKS_EXCLUDED(mu_);
  void Refuse(std::size_t item, absl::Status refusal) ABSL_LOCKS_EXCLUDED(mu_);

  const bool has_others_;  // the step has rows that were not late before
  const std::size_t words_;
  const std::uint64_t round_;
  const absl::Duration compile_limit_;
  const absl::Duration late_limit_;
  const Clock& clock_;
  const std::shared_ptr<MaskCulprit> culprit_;
  std::vector<Item> items_;
  absl::Mutex mu_;
  std::vector<Progress> progress_ ABSL_GUARDED_BY(mu_);  // [items]
  std::int64_t charged_ns_ ABSL_GUARDED_BY(mu_) = 0;     // the longest wait in vain
};

}  // namespace flotilla::worker
