// StepPlanner: decides what the next step does and writes it as a plan.
//
// One object makes at most one plan. Order of the budget: every decode and every
// beam that is due, then the prompts already begun, then new ones. Blocks are
// allocated for the longest that each sequence can be by then. The cost grows with the running
// sequences and with what changes, never with context length.
//
// While a request is quarantined (Request::quarantined) plans alternate between steps of
// its own, in which all others are deferred, and steps of all others.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/types/plan.h"
#include "scheduler/core/core_state.h"
#include "scheduler/core/expected_output.h"

namespace flotilla {

// Why there is no plan now, and what ends the wait.
enum class StallReason : std::uint8_t {
  kNone,          // there is one
  kNotReady,      // no worker group: its Ready
  kPipelineFull,  // lag + 1 plans are unanswered: the next result
  kMemory,        // a sequence is short of a block: all results, which free some or
                  // make it safe to preempt
  kResults,       // all that is runnable is in plans already: the next result
  kIdle,          // nothing to run: the next request
};

struct PlanOutcome {
  std::optional<StepPlan> plan;
  StallReason stall = StallReason::kNone;  // kNone exactly when there is a plan
  // Plan again at this time at the latest (a deadline), if anything is due.
  std::optional<std::int64_t> wake_ns;
};

class StepPlanner {
 public:
  // `state` outlives the planner.
  explicit StepPlanner(CoreState& state) : state_(state) {}

  // The next plan, recorded as in flight, or why there is none; then nothing
  // has changed but for preemptions, which only happen on the way to a plan.
  PlanOutcome Make();

 private:
  struct Chunk {
    TableIndex index;
    std::uint32_t rows;
  };
  // How a pending sequence is opened: as a fork of its parent, else after what the prefix
  // cache has.
  struct PendingOpen {
    TableIndex index;
    std::uint32_t rows;
    KvCacheManager::Match match;
  };

  bool DueInThisStep(const Sequence& sequence) const;
  // Chooses whom the step is for, and looks at them.
  void Choose();
  // Whether the step is for this request's kind: the isolated one, or all others.
  bool IsFor(const Request& request) const { return request.quarantined == isolated_step_; }
  void Assess();
  void AssessDecodes();
  void AssessDecode(TableIndex index);
  // A beam that is one token from its next choice: with the decodes.
  bool IsBeamStep(const Sequence& sequence) const;
  void AssessBeamStep(TableIndex index);
  bool ParentIsReady(const Sequence& sequence) const;
  void KeepToItlTarget();
  void AssessPrefills();
  void AssessPrefill(TableIndex index, std::uint64_t room);
  // Returns how a pending sequence can be opened with at most `blocks` new blocks.
  std::optional<PendingOpen> FindOpen(TableIndex index, std::uint64_t blocks);
  // Blocks that it takes to open a sequence in this way and run its rows.
  std::uint64_t OpenNeeds(const PendingOpen& open) const;
  void ScheduleOpen(const PendingOpen& open);
  // A request that waits and may be admitted now, with what the prefix cache has of it.
  struct Admission {
    TableIndex request;
    KvCacheManager::Match match;
  };
  // The first in the queue, or one of those behind it while it may be passed.
  std::optional<Admission> FindAdmission();
  std::optional<Admission> TryAdmit(TableIndex request);
  // Whether what tiers have of the head of the queue is to be read back now, so that
  // it is there when its turn comes; and the beginning of that.
  bool WantsLoad(const KvCacheManager::Match& match) const;
  void Load(const Admission& head);
  // Copies the blocks that would be given away next to a tier while few are free.
  void StoreAhead();
  // Copies are under way that somebody waits for, and no other plan brings news.
  bool MustPoll() const;
  std::uint64_t AdmissionNeeds(const Request& request, const KvCacheManager::Match& match) const;
  bool PrefixIsBeingComputed(const Request& request, const KvCacheManager::Match& match) const;
  void AddExpected(const Request& request, std::vector<ExpectedOutput>& expected) const;
  std::uint64_t PeakBlocksWith(const Request& request);

  // Blocks set aside for non-preemptible requests: what they can still come
  // to need beside what they hold.
  std::uint64_t ReservedBlocks() const;
  // Blocks that the request may take, and takes.
  std::uint64_t Room(const Request& request) const;
  void Take(const Request& request, std::uint64_t blocks);
  // Blocks that a decode needs for its next token.
  std::uint64_t BlocksNeededForNext(const Sequence& sequence) const;
  // Takes what a deferred sequence needs, though it cannot be granted in this step.
  void KeepFor(const Sequence& sequence);
  void Promise(const Request& request, std::uint64_t blocks);
  bool WorthSending();
  bool AnyDeferred() const;
  bool InFirstRequest(const Sequence& sequence) const;

  void EmitDeferrals();
  void EmitOpens();
  void EmitOpen(const PendingOpen& open);
  void Opened(Sequence& sequence);
  void EmitDecodes();
  // What is left of the budget and of the free blocks goes to draft tokens, where they
  // pay. Nobody else gets less for them.
  void EmitDraftTokens();
  std::uint32_t AllowedDraftTokens(const Sequence& sequence) const;
  void EmitDraftTokens(Sequence& sequence, PlannedRun& run, std::uint32_t depth);
  // Takes back what sequences have for wrong draft tokens. Whether there was any.
  bool TrimSequences();
  void EmitChunk(TableIndex index, std::uint32_t rows);
  void EmitAdmissions();
  void Admit(const Admission& admission);
  void Open(TableIndex index, const KvCacheManager::Match& match);
  std::uint32_t SmallestMicroBatch() const;

  CoreState& state_;
  StepPlan plan_;
  std::vector<PlannedRun> runs_;
  std::uint32_t prefill_rows_ = 0;
  std::uint32_t draft_rows_ = 0;

  bool isolated_step_ = false;  // a step for the isolated request alone

  // Assess fills these for the state as it is.
  std::vector<TableIndex> decodes_;          // due and with a block behind the position
  std::vector<TableIndex> finished_;         // due, but surely finished: no-ops
  std::vector<TableIndex> short_of_blocks_;  // could run but for blocks
  std::vector<TableIndex> for_other_steps_;  // due, but the step is for others
  std::vector<Chunk> chunks_;                // of prompts already begun, and of beams
  std::vector<PendingOpen> opens_;           // of pending sequences
  bool due_later_ = false;                   // a decode is due in another micro-batch's step
  std::uint64_t free_blocks_ = 0;            // after all of the above, reserved ones apart
  std::uint64_t promised_blocks_ = 0;        // for the rest of the prompts begun
  std::uint32_t budget_ = 0;                 // rows left
  bool waits_for_prefix_ = false;            // the head of the queue
  std::optional<Admission> load_;  // the head of the queue, if it is to be read back first
  std::optional<std::vector<ExpectedOutput>> expected_;  // of the running sequences, once needed
};

}  // namespace flotilla
