// StepPlanner: decides what the next step does and writes it as a plan.
//
// One object makes at most one plan. The row budget goes first to every decode and every
// beam that is due, then to the prompts already begun, then to new ones. Each sequence
// gets blocks for the greatest length that it can have after the step. The cost of a plan
// grows with the running sequences and with what changes, never with context length.
//
// While a request is quarantined (Request::quarantined), plans alternate between steps of
// its own, in which all others are deferred, and steps of all others.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/types/plan.h"
#include "scheduler/core/core_state.h"
#include "scheduler/core/expected_output.h"

namespace flotilla::scheduler {

// Why there is no plan now, and which event ends the wait.
enum class StallReason : std::uint8_t {
  kNone,          // there is a plan
  kNotReady,      // there is no worker group; Ready ends the wait
  kPipelineFull,  // lag + 1 plans are unanswered; the next result ends the wait
  kMemory,        // a sequence is short of a block; all results are awaited, because they
                  // free blocks or make it safe to preempt
  kResults,       // all that is runnable is in plans already; the next result ends the wait
  kIdle,          // there is nothing to run; the next request ends the wait
};

struct PlanOutcome {
  std::optional<StepPlan> plan;
  StallReason stall = StallReason::kNone;  // kNone exactly when there is a plan
  // The time (a deadline) at which Plan must be called again at the latest; none: no
  // request has a deadline.
  std::optional<std::int64_t> wake_ns;
};

class StepPlanner {
 public:
  // `state` outlives the planner.
  explicit StepPlanner(CoreState& state) : state_(state) {}

  // Returns the next plan and records it as in flight, or returns why there is none. If
  // there is none, nothing has changed except for preemptions, which only happen on the
  // way to a plan.
  PlanOutcome Make();

 private:
  struct Chunk {
    TableIndex index;
    std::uint32_t rows;
  };
  // How a pending sequence is opened: as a fork of its parent, or else after the blocks
  // that the prefix cache has for it.
  struct PendingOpen {
    TableIndex index;
    std::uint32_t rows;
    KvCacheManager::Match match;
  };

  bool DueInThisStep(const Sequence& sequence) const;
  // Chooses whether the step is for the isolated request or for all others, and assesses
  // those.
  void Choose();
  // Whether the step is for this request's kind: the isolated one, or all others.
  bool IsFor(const Request& request) const { return request.quarantined == isolated_step_; }
  void Assess();
  void AssessDecodes();
  void AssessDecode(TableIndex index);
  // Whether the sequence is a beam that needs one token before its next choice. Such a
  // beam runs with the decodes.
  bool IsBeamStep(const Sequence& sequence) const;
  void AssessBeamStep(TableIndex index);
  bool ParentIsReady(const Sequence& sequence) const;
  void KeepToItlTarget();
  void AssessPrefills();
  void AssessPrefill(TableIndex index, std::uint64_t room);
  // Returns how a pending sequence can be opened with at most `blocks` new blocks.
  std::optional<PendingOpen> FindOpen(TableIndex index, std::uint64_t blocks);
  // The blocks that it takes to open a sequence in this way and run its rows.
  std::uint64_t OpenNeeds(const PendingOpen& open) const;
  void ScheduleOpen(const PendingOpen& open);
  // A waiting request that may be admitted now, with what the prefix cache has of it.
  struct Admission {
    TableIndex request;
    KvCacheManager::Match match;
  };
  // Returns the first request in the queue if it may be admitted, or else one behind it
  // while the first may be bypassed.
  std::optional<Admission> FindAdmission();
  std::optional<Admission> TryAdmit(TableIndex request);
  // Whether the blocks in tiers that the head of the queue can use are to be read back
  // now, so that they are in the pool when the request is admitted.
  bool WantsLoad(const KvCacheManager::Match& match) const;
  // Begins to read these blocks back.
  void Load(const Admission& head);
  // Copies the blocks that would be evicted next to a tier, while few blocks are free.
  void StoreAhead();
  // Whether a plan must be sent only to learn that copies have ended: copies are under
  // way, and no plan is in flight.
  bool MustPoll() const;
  std::uint64_t AdmissionNeeds(const Request& request, const KvCacheManager::Match& match) const;
  bool PrefixIsBeingComputed(const Request& request, const KvCacheManager::Match& match) const;
  void AddExpected(const Request& request, std::vector<ExpectedOutput>& expected) const;
  std::uint64_t PeakBlocksWith(const Request& request);

  // The blocks reserved for non-preemptible requests: those that they can still come to
  // need in addition to what they hold.
  std::uint64_t ReservedBlocks() const;
  // The blocks that the request may take.
  std::uint64_t Room(const Request& request) const;
  // Takes blocks for the request from free_blocks_.
  void Take(const Request& request, std::uint64_t blocks);
  // The blocks that a decode needs for its next token.
  std::uint64_t BlocksNeededForNext(const Sequence& sequence) const;
  // Takes from free_blocks_ what a deferred sequence needs, although the blocks cannot be
  // granted in this step.
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
  // Gives what is left of the row budget and of the free blocks to draft tokens, where
  // they pay. No other work gets less because of them.
  void EmitDraftTokens();
  std::uint32_t AllowedDraftTokens(const Sequence& sequence) const;
  void EmitDraftTokens(Sequence& sequence, PlannedRun& run, std::uint32_t depth);
  // Takes back the blocks that sequences have for wrong draft tokens. Returns whether
  // there were any.
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

  bool isolated_step_ = false;  // the step is for the isolated request alone

  // Assess computes the following fields from the current state.
  std::vector<TableIndex> decodes_;          // due, and there is a block for the position
  std::vector<TableIndex> finished_;         // due, but surely finished: no-ops
  std::vector<TableIndex> short_of_blocks_;  // could run if they had blocks
  std::vector<TableIndex> for_other_steps_;  // due, but the step is for others
  std::vector<Chunk> chunks_;                // of prompts already begun, and of beams
  std::vector<PendingOpen> opens_;           // of pending sequences
  bool due_later_ = false;                   // a decode is due in another micro-batch's step
  std::uint64_t free_blocks_ = 0;            // after all of the above, without reserved ones
  std::uint64_t promised_blocks_ = 0;        // needed for the rest of the prompts begun
  std::uint32_t budget_ = 0;                 // rows left
  bool waits_for_prefix_ = false;            // the head of the queue waits for a prefix
  std::optional<Admission> load_;  // the head of the queue, if it is to be read back first
  std::optional<std::vector<ExpectedOutput>> expected_;  // of the running sequences, once needed
};

}  // namespace flotilla::scheduler
