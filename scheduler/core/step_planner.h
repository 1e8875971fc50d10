// StepPlanner: decides what the next step does and writes it as a plan.
//
// One object makes at most one plan. The row budget goes first to every decode and every
// beam that is due. The rest is dealt to prompts, begun and new ones alike, in one order; a
// quarter of a step is kept for prompts that are shorter than the one that would take all of it.
// Each sequence gets blocks for the greatest length that it can have after the step. The cost of
// a plan grows with the running sequences and with what changes, never with context length.
//
// While requests are quarantined, shared steps alternate with isolated ones. An isolated step
// has the fatal rows of one request (Sequence::fatal), and all others are deferred in it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
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
  kHeldBack,      // only requests of refused plans are left, and they pause; wake_ns ends the wait
};

struct PlanOutcome {
  std::optional<StepPlan> plan;
  StallReason stall = StallReason::kNone;  // kNone exactly when there is a plan
  // The time (a deadline, or the end of a pause after a refused plan) at which Plan must be called
  // again at the latest; none: there is no such time.
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
    std::uint32_t begin;  // the position of its first row
    std::uint32_t rows;
    KvCacheManager::Match match;
  };

  // Where the group cannot fork: sequences that are not open do not plan to.
  void ForgetForks();
  // Where parents have left the runs within which sequences are to fork: these fork before.
  void ShortenForks();
  bool IsolatedStepInPipeline() const;
  bool DueInThisStep(const Sequence& sequence) const;
  // Chooses whether the step is isolated or shared, and assesses what can run in it.
  void Choose();
  // Chooses the request of an isolated step. Returns whether there is one. `backs_off`: even one
  // that backs off.
  bool ChooseIsolated(bool backs_off);
  bool CanIsolate(TableIndex request) const;
  bool HasFatalRows(const Sequence& sequence) const;
  // Whether the sequence may run in this kind of step.
  bool IsInThisStep(const Sequence& sequence) const;
  bool AnythingToRun();
  void Assess();
  void AssessDecodes();
  void AssessDecode(TableIndex index);
  // Gives a decode its row, or notes that it is short of a block for it.
  void TakeRow(TableIndex index);
  // Whether the sequence is a beam that needs one token before its next choice. Such a
  // beam runs with the decodes.
  bool IsBeamStep(const Sequence& sequence) const;
  void AssessBeamStep(TableIndex index);
  bool ParentIsReady(const Sequence& sequence) const;
  void KeepToItlTarget();
  StepShape DecodesToCome() const;
  bool DecodesAloneInFlight() const;
  // As many of `rows` rows of a chunk from position `begin` as the inter-token target allows.
  std::uint32_t RowsOfTarget(std::uint32_t begin, std::uint32_t rows, bool first = false) const;
  // Opens what is pending, and finds whether begun prompts can go on.
  void AssessPrompts();
  void AssessPrompt(TableIndex index);
  std::uint32_t MaxChunk() const;
  std::uint64_t PromptRoom(const Request& request) const;
  // The rows that a prompt may have in this step: up to `rows`, and as many as `blocks` hold.
  std::uint32_t RowsWithin(const Sequence& sequence, std::uint32_t rows,
                           std::uint64_t blocks) const;
  // Returns how a pending sequence can be opened with at most `blocks` new blocks.
  std::optional<PendingOpen> FindOpen(TableIndex index, std::uint64_t blocks);
  // The blocks that it takes to open a sequence in this way and run its rows.
  std::uint64_t OpenNeeds(const PendingOpen& open) const;
  void ScheduleOpen(const PendingOpen& open);
  // Bytes that a sequence's constraint and its breakers of DRY take in the plan that opens it.
  static std::size_t BytesInPlan(const SamplingParams& sampling);
  // The tokens of a sequence that opens, as they are in the plan.
  std::size_t TokensInPlan(const Request& request) const;
  // The plan opens a sequence that does not fork.
  void CountInPlan(const Request& request);
  // Whether the plan, which is a message, has room for one.
  bool HasRoomInPlan(const Request& request) const;
  // A waiting request that may be admitted now, with what the prefix cache has of it.
  struct Admission {
    TableIndex request;
    KvCacheManager::Match match;
  };
  // Why a waiting request cannot be admitted now.
  struct Attempt {
    std::optional<Admission> admission;
    // For memory, sequences or the plan's room for constraints, which later requests may take from
    // it.
    bool blocked = false;
    bool late = false;                    // running requests would miss their deadlines beside it
    std::optional<TableIndex> computing;  // the sequence that computes its prefix
  };
  Attempt TryAdmit(TableIndex request);
  // Whether any waiting request can be admitted, or the head is to be loaded.
  bool CanAdmit();

  // Deals the rows that are left to prompts, in the order of CoreState::Before.
  void DealRows();
  // Deals rows to one begun prompt.
  void DealToPrompt(TableIndex index, std::uint32_t most);
  // Admits a waiting request with up to `most` rows if it can be. Otherwise notes who is
  // blocked, and deals rows to the prompt that computes its prefix.
  bool DealToWaiting(TableIndex request, std::uint32_t most);
  // Deals a quarter of a step to prompts shorter than `rows`, the shortest first, before a
  // prompt of `request` takes all that is left.
  void DealToShorter(TableIndex request, std::uint64_t rows);
  std::optional<TableIndex> ShortestPrompt(const Request& than, std::uint64_t rows) const;
  std::optional<TableIndex> ShortestWaiting(const Request& than, std::uint64_t rows) const;
  // The next request of the queue that was not tried in this plan.
  std::optional<TableIndex> NextWaiting();
  void NoteBlocked();
  bool MayGoFirst(TableIndex request);
  void NoteTried(TableIndex request, const Attempt& attempt);
  void ForgetTried();
  // Whether the order lets `request` have what `than` would have had or has.
  bool MayTakeFrom(const Request& than, const Request& request) const;
  std::vector<TableIndex> OvertakenBy(TableIndex request) const;
  bool MayOvertake(TableIndex request) const;
  // Counts the prompt of a request that starts for all that it overtakes.
  void CountOvertaken(TableIndex request);
  std::uint32_t RowsLeft(const Sequence& sequence) const;
  // Whether the blocks in tiers that the head of the queue can use are to be read back
  // now, so that they are in the pool when the request is admitted.
  bool WantsLoad(const KvCacheManager::Match& match) const;
  // Begins to read the blocks back that tiers have after a match.
  void Load(const Admission& load);
  // Begins to read back what tiers have of the first few requests in the queue, as far as these
  // could start beside the running requests and those before them.
  void LoadAhead();
  // Begins to copy blocks to tiers before they are evicted. Copies take no blocks from running
  // sequences, nor from a request that waits for blocks.
  void StoreAhead();
  // Whether a plan must be sent only to learn that copies have ended: copies are under way, no
  // plan is in flight, and somebody waits.
  bool MustPoll() const;
  // The blocks that must be left when the request starts, for the expected output of the running
  // requests and its own.
  std::uint64_t ExpectedBlocks(const Request& request);
  std::uint64_t AdmissionNeeds(const Request& request, const KvCacheManager::Match& match) const;
  // The running sequence that is about to compute the prompt of this request further than its
  // match. To wait for it is cheaper than to compute the blocks twice.
  std::optional<TableIndex> WhoComputesPrefix(const Request& request,
                                              const KvCacheManager::Match& match) const;
  void AddExpected(const Request& request, std::vector<ExpectedOutput>& expected) const;
  std::uint64_t PeakBlocksWith(const Request& request);

  // Counts the blocks that are reserved for protected requests in addition to what they hold.
  void CountReserved();
  // The blocks that are reserved for a protected request in all: those that it can ever need if it
  // is non-preemptible, else those that it needs by the upper forecast of its outputs.
  std::uint64_t ReservationOf(const Request& request) const;
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
  // The blocks of a match that requests which reserve blocks count on.
  std::uint64_t CountedOn(const KvCacheManager::Match& match) const {
    return reserved_requests_ ? match.counted_on : 0;
  }
  // Takes granted blocks out of those that are promised.
  void Redeem(const Request& request, std::uint64_t blocks);
  bool WorthSending();
  // If the head of the queue is blocked and can start if requests of lower classes give way to it:
  // the sequence whose request is the first to do so.
  std::optional<TableIndex> VictimOfHead();
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
  // Takes back the blocks of window groups that no row after this plan needs.
  void ReleaseFronts();
  // Takes back the blocks that sequences have for wrong draft tokens. Returns whether
  // there were any.
  bool TrimSequences();
  void EmitChunk(TableIndex index, std::uint32_t rows);
  void ChargePrompt(Request& request, std::uint32_t begin, std::uint32_t end);
  void Admit(const Admission& admission, std::uint32_t most);
  void Open(TableIndex index, const KvCacheManager::Match& match);
  std::uint32_t SmallestMicroBatch() const;

  CoreState& state_;
  StepPlan plan_;
  std::vector<PlannedRun> runs_;

  std::optional<TableIndex> isolated_;  // the request of an isolated step

  // Assess computes the following fields from the current state.
  std::vector<TableIndex> decodes_;          // due, and there is a block for the position
  std::vector<TableIndex> finished_;         // due, but surely finished: no-ops
  std::vector<TableIndex> short_of_blocks_;  // could run if they had blocks
  std::vector<TableIndex> for_other_steps_;  // due, but the step is for others
  std::vector<TableIndex> backing_off_;      // due, but their masks are probably late
  std::vector<Chunk> chunks_;                // of beams
  std::vector<PendingOpen> opens_;           // of pending sequences
  bool decodes_are_short_ = false;           // some of short_of_blocks_ are decodes
  bool due_later_ = false;                   // a decode is due in another micro-batch's step
  std::uint64_t available_blocks_ = 0;       // after all of the above
  std::uint64_t free_blocks_ = 0;            // the same, without reserved ones
  // Blocks reserved at the beginning of the plan: for non-preemptible requests, and for all that
  // are protected.
  std::uint64_t kept_blocks_ = 0, reserved_blocks_ = 0;
  bool reserved_requests_ = false;     // whether any is protected
  StepShape shape_;                    // of all of the above
  StepTimeModel::Target target_;       // for the step, if chunks keep to one
  std::uint64_t promised_blocks_ = 0;  // needed for the rest of the prompts begun
  std::uint32_t budget_ = 0;           // rows left
  std::size_t constraint_bytes_ = 0;   // of the sequences that open and do not fork
  std::size_t opened_tokens_ = 0;      // of the same
  std::vector<TableIndex> order_;      // the running sequences, in order
  std::vector<TableIndex> prompts_;    // begun ones, in order, that were dealt no rows yet
  bool prompt_can_run_ = false;        // one of them has blocks for a row
  bool waits_for_prefix_ = false;      // the head of the queue waits for a prefix
  // Waiting requests that could not be admitted, and how many of them do not wait for a prefix.
  absl::flat_hash_set<TableIndex> tried_;
  std::size_t tried_in_vain_ = 0;
  std::vector<TableIndex> queue_;               // the next waiting requests, the first one last
  std::vector<TableIndex> blocked_;             // waiting requests that others can overtake
  bool noted_all_ = false;                      // those not tried yet are among them
  std::optional<TableIndex> blocked_isolated_;  // the first that starts in isolated steps, too
  std::vector<TableIndex> computing_;           // sequences that compute prefixes of tried_
  // Whose rows went to shorter ones first. It advances in this step all the same.
  std::optional<TableIndex> lender_;
  std::optional<Admission> load_;  // the head of the queue, if it is to be read back first
  std::optional<std::vector<ExpectedOutput>> expected_;  // of the running sequences, once needed
};

}  // namespace flotilla::scheduler
