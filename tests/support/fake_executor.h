// FakeExecutor: a StepExecutor without a model, for tests of everything above the
// StepExecutor interface.
//
// The state of sequences is the real one (GroupState). Tokens come from FakeToken, a pure
// function that tests can predict. One step runs at a time, whatever the lag.
// Tests inject faults by step. The executor runs on its own thread or in manual mode. In
// manual mode nothing happens until the test calls Advance, and all events arrive inside
// that call.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/types/executor.h"
#include "worker/core/group_state.h"

namespace flotilla::testing {

// The token that a FakeExecutor samples as output token `output_index` of a sequence. It
// is a hash of SequenceSeed(seed, sequence) and the index, in [0, vocab_size).
TokenId FakeToken(std::uint64_t seed, SequenceIndex sequence, std::uint32_t output_index,
                  std::uint32_t vocab_size);

// Returns `token` with invented log-probabilities: its own, and `top` alternatives (none
// if negative). The alternatives are the token and those after it in the vocabulary.
SampledToken FakeSample(TokenId token, std::int32_t top, std::uint32_t vocab_size);

// The outputs of a step whose rows FakeToken and FakeSample compute: one entry per item of
// the batch.
std::vector<worker::ItemOutput> FakeOutputs(const worker::Batch& batch, std::uint32_t vocab_size);

struct FakeExecutorOptions {
  // The description that OnReady reports and that plans are checked against.
  ExecutorDescription description = DefaultDescription();
  // False: steps run on a thread as they arrive. True: only inside Advance.
  bool manual = false;

  // One KV group of 16-token blocks, 1024 blocks, context 8192, vocabulary 1000,
  // 64 sequences, 512 tokens a step, lag 1.
  static ExecutorDescription DefaultDescription();
};

class FakeExecutor final : public StepExecutor {
 public:
  explicit FakeExecutor(FakeExecutorOptions options = {});
  ~FakeExecutor() override;

  absl::Status Start(ExecutorListener* listener) override;
  absl::Status Execute(StepPlan plan) override;
  void EndEpoch(Epoch epoch) override;
  // A listener's method must not call it.
  void Stop() override;

  // These methods inject faults into the current epoch (before Ready: into the first). A
  // fault that has not struck when the epoch ends is forgotten. Any thread.
  //
  // Loses the group (Lost::kDied) when `step` has started, before its result.
  void LoseDuring(Step step, bool blames_requests = true);
  // Loses the group right after the result of `step`; step 0: right after Ready.
  void LoseAfter(Step step);
  // Loses the group before its next step. Queued plans are dropped and never start. In
  // manual mode the event arrives with the next Advance.
  void LoseNow();
  // Treats the plan of `step` as one whose digest differs.
  void CorruptDigest(Step step);
  // The same in each epoch, as of a group that goes wrong by itself.
  void CorruptDigestInEachEpoch(Step step);
  // Refuses each plan that opens a sequence of this request, in this epoch and in all later ones.
  // kDigest: the plan's digest differs. kInvalidPlan: the operation is refused.
  void RefuseRequest(const RequestId& request, Lost::Cause cause = Lost::Cause::kInvalidPlan);
  // Makes Ready of the next epoch wait for Restart (default: Ready follows Lost at once).
  void HoldRestart();
  void Restart();
  // No step starts between Pause and Resume, so results wait.
  void Pause();
  void Resume();

  // Manual mode: does the one thing that is next (Ready, a step, a loss). Returns false
  // when nothing is left to do.
  bool Advance();
  // Manual mode: calls Advance until it returns false.
  void AdvanceAll();

  // Plans accepted and not answered.
  std::uint32_t queued() const;
  Epoch epoch() const;

 private:
  enum class Phase : std::uint8_t { kIdle, kStarting, kReady, kHeld, kStopped };

  void Loop();
  bool CanAdvance() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool CanAdvanceOrStopped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginEpoch();
  void RunPlan(const StepPlan& plan);
  StepResult Compute(const worker::Batch& batch);
  void Lose(Lost::Cause cause, std::string detail, std::vector<Step> started,
            bool blames_requests = false, std::optional<Step> refused = std::nullopt);

  const FakeExecutorOptions options_;
  ExecutorListener* listener_ = nullptr;
  std::thread thread_;

  // Only the executing thread uses it: the executor's own thread, or the one that calls
  // Advance. None until the first Ready.
  std::optional<worker::GroupState> state_;

  mutable absl::Mutex mu_;
  Phase phase_ ABSL_GUARDED_BY(mu_) = Phase::kIdle;
  Epoch epoch_ ABSL_GUARDED_BY(mu_){0};
  std::deque<StepPlan> plans_ ABSL_GUARDED_BY(mu_);
  std::uint32_t unanswered_ ABSL_GUARDED_BY(mu_) = 0;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  bool hold_restart_ ABSL_GUARDED_BY(mu_) = false;
  // How the group is to be lost before its next step.
  std::optional<Lost::Cause> lose_now_ ABSL_GUARDED_BY(mu_);
  std::map<Step, bool> lose_during_ ABSL_GUARDED_BY(mu_);  // and whether it blames requests
  std::set<Step> lose_after_ ABSL_GUARDED_BY(mu_);
  std::set<Step> corrupt_ ABSL_GUARDED_BY(mu_);
  std::optional<Step> corrupt_in_each_epoch_ ABSL_GUARDED_BY(mu_);
  std::map<RequestId, Lost::Cause> refused_ ABSL_GUARDED_BY(mu_);
};

}  // namespace flotilla::testing
