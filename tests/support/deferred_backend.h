// DeferredBackend: a second Backend, for tests. It proves that nothing above
// worker/compute/backend.h depends on how CpuBackend works: it gives the same bits, and shares with
// CpuBackend only the reference kernels, which define the bits, and what these read: weights in a
// PackedMatrix, tables of RoPE. The trees of sums are those of worker/core.
//
// It differs wherever the contract allows it:
//   Time: every call only enqueues. One worker thread of its own begins a step a seeded time after
//     its Start, and runs the operations in order.
//   Memory: a handle is a number out of one sequence for all kinds. Each row of a buffer is memory
//     by itself, longer than asked. All rows are NaN when a step starts and when it ends; the form
//     that Norm makes is NaN to everything but the product that it is for.
//   K and V: per block, layer and head [16 tokens][dim] floats, rounded as the KV type stores them;
//     NaN until they are written, and again when the block is granted.
//   Tiers: maps from slot to contents. A background copy is made as late as a seeded number of
//     calls of TakeCopiesDone and Start allows, by the worker thread.
// So whoever reads what is not written, no longer valid or of another step gets NaN in the answers.
// A caller that breaks the contract in another way (the wrong handle, sizes that do not fit, an
// operation outside of a step, too many steps) gets an error from Finish that names the operation.
//
// One thread at a time calls it. Where it is destroyed with unfinished steps, the operations that
// have not begun never run, and the destructor waits for the one that runs. If that one waits for
// another rank, the owner aborts the exchange first.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "tests/support/random.h"
#include "worker/compute/backend.h"

namespace flotilla::testing {

// The calls of Finish until one fails, that one included.
using FinishesLeft = std::shared_ptr<std::atomic<std::int64_t>>;

struct DeferredOptions {
  std::uint64_t seed = 0;         // of all delays
  std::uint32_t max_started = 2;  // steps that are started and not finished: lag + 1
};

class DeferredBackend final : public worker::Backend {
 public:
  DeferredBackend(const worker::BackendOptions& options, const DeferredOptions& deferred);
  ~DeferredBackend() override;

  // The n-th Finish from now on (1: the next), and every later one, fails: INTERNAL. If its step
  // has not started yet, no operation of the step will run.
  void FailAfter(std::int64_t n) { finishes_left_->store(n); }
  const FinishesLeft& finishes_left() const { return finishes_left_; }

  absl::Status Check(const model::ModelSpec& spec) const override;
  worker::BufferHandle AddBuffer(std::int64_t width) override;
  worker::VectorHandle AddVector(std::vector<float> values) override;
  worker::RopeHandle AddRope(const model::RopeSpec& rope) override;
  worker::EmbeddingHandle AddEmbedding(const worker::EmbeddingSource& source) override;
  absl::StatusOr<worker::MatrixHandle> AddMatrix(std::vector<worker::MatrixPart> parts,
                                                 std::vector<float> bias) override;
  absl::StatusOr<worker::HeadMatricesHandle> AddHeadMatrices(
      std::vector<worker::MatrixPart> parts) override;
  absl::StatusOr<worker::ProjectionHandle> AddProjection(
      const worker::ProjectionSource& source) override;
  absl::StatusOr<worker::ExpertsHandle> AddExperts(const worker::ExpertsSource& source) override;
  absl::StatusOr<worker::HeadHandle> AddHead(const worker::HeadSource& source) override;
  absl::Status Load() override;

  worker::BlockChoice DefaultBlockCount(const worker::KvShape& own,
                                        const worker::BlockNeeds& needs) const override;
  absl::Status CreateKv(const worker::KvShape& shape, std::uint32_t blocks,
                        const worker::TierOptions& tiers) override;
  const std::vector<KvTier>& tiers() const override { return tiers_; }
  absl::StatusOr<std::vector<std::uint64_t>> TakeCopiesDone(bool wait) override;
  void ForgetCopies() override;

  void Start(worker::StepInputs inputs, worker::RowReceiver* receiver) override;
  void Embed(worker::EmbeddingHandle table, worker::BufferHandle out) override;
  void ReceiveResidual(worker::BufferHandle x) override;
  void SendResidual(worker::BufferHandle x) override;
  void NormInPlace(worker::BufferHandle x, const worker::NormOp& norm) override;
  void Norm(worker::BufferHandle x, const worker::NormOp& norm, worker::MatrixHandle next,
            worker::BufferHandle out) override;
  void Prepare(worker::BufferHandle x, worker::MatrixHandle next,
               worker::BufferHandle out) override;
  void Multiply(worker::BufferHandle x, worker::MatrixHandle matrix,
                worker::BufferHandle out) override;
  void GateUp(worker::BufferHandle x, worker::MatrixHandle gate_up, const worker::FfnOp& ffn,
              worker::BufferHandle out) override;
  void AddProjection(worker::BufferHandle x, worker::ProjectionHandle projection,
                     worker::BufferHandle residual) override;
  void Project(worker::BufferHandle x, worker::ProjectionHandle projection,
               worker::BufferHandle out) override;
  void RouteRows(worker::BufferHandle x, const std::optional<worker::NormOp>& norm,
                 worker::ExpertsHandle experts, worker::BufferHandle out) override;
  void GateUpExperts(worker::BufferHandle x, worker::ExpertsHandle experts,
                     const worker::FfnOp& ffn, worker::BufferHandle out) override;
  void AddMixture(worker::BufferHandle x, worker::ExpertsHandle experts,
                  worker::BufferHandle residual) override;
  void Mix(worker::BufferHandle x, worker::ExpertsHandle experts,
           worker::BufferHandle out) override;
  void ScaleShared(worker::ExpertsHandle experts, worker::BufferHandle x) override;
  void AddScaled(worker::BufferHandle x, float factor, worker::BufferHandle residual) override;
  void Absorb(const worker::LatentOp& op, worker::BufferHandle queries, worker::BufferHandle latent,
              worker::BufferHandle qkv) override;
  void MultiplyHeads(worker::BufferHandle x, worker::HeadMatricesHandle matrices,
                     const std::vector<std::int32_t>& places, worker::BufferHandle out) override;
  void RopeAndStore(const worker::AttentionOp& attention, worker::BufferHandle qkv) override;
  void Attend(const worker::AttentionOp& attention, worker::BufferHandle qkv,
              worker::BufferHandle out) override;
  void Head(worker::BufferHandle x, const worker::NormOp& norm, worker::HeadHandle head) override;
  absl::StatusOr<std::vector<worker::RowPartial>> Finish() override;

  void OnHost(std::int64_t count, absl::FunctionRef<void(std::int64_t)> fn) override;
  std::int64_t weight_bytes() const override;
  std::int64_t buffer_bytes() const override;

 private:
  // The memory and the operations of the worker thread; defined in deferred_device.h.
  class Device;
  struct Step;

  // What the worker thread does next.
  struct Work {
    std::uint64_t step = 0;  // number
    bool always = false;     // also after an error
    std::function<absl::Status()> run;
  };
  struct PendingCopy {
    BackgroundCopy copy;
    std::uint64_t step = 0;        // the copy begins with this step
    std::uint32_t calls_left = 0;  // of TakeCopiesDone and Start, until it is made
  };

  // Called by the caller's thread.
  // Adds an operation of the newest step. `valid`: whether the handles are ones that it gave out.
  void Enqueue(std::string_view operation, bool valid, std::function<absl::Status()> run);
  void Push(Work work);
  // Says that no operation of the newest step follows.
  void Seal();
  // Records a breach of the contract; `message` names it.
  void Misuse(std::string_view message);
  // Whether no step has started. Otherwise `what` is a breach.
  bool MayAdd(std::string_view what);

  // Called by any thread. The error comes from the Finish of step `number` and of all later ones.
  void Fail(std::uint64_t number, const absl::Status& status);

  void Loop();  // of the worker thread

  bool CopyIsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !copies_.empty() && copies_.front().calls_left == 0 &&
           copies_.front().step <= begun_steps_;
  }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopped_ || CopyIsDue() || !queue_.empty();
  }
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !copies_done_.empty() || (copies_.empty() && !copying_);
  }
  bool NoCopyRuns() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !copying_; }
  void CountDown() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const DeferredOptions deferred_;
  worker::Exchange* const exchange_;  // may be null
  const FinishesLeft finishes_left_;

  // Only the caller's thread has these.
  Random random_;
  std::deque<std::unique_ptr<Step>> steps_;  // that are not finished, oldest first
  std::uint64_t last_step_ = 0;              // number of the newest: 1, 2, 3 ...
  bool open_ = false;                        // operations of the newest step may follow
  std::vector<KvTier> tiers_;

  // Until the first Start the caller's thread has it, then the worker thread.
  const std::unique_ptr<Device> device_;

  absl::Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Work> queue_ ABSL_GUARDED_BY(mu_);
  std::uint64_t begun_steps_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<PendingCopy> copies_ ABSL_GUARDED_BY(mu_);
  bool copying_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::uint64_t> copies_done_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  std::uint64_t failed_step_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_;
};

// Reaches the backends that MakeDeferredBackends makes, also when a test does not own them. Any
// thread may call it.
class DeferredControl {
 public:
  int made() const;
  // Does FailAfter of the backend that was made last. At least one was made.
  void FailAfter(std::int64_t n);
  // MakeDeferredBackends adds each backend.
  void Add(FinishesLeft finishes_left);

 private:
  mutable absl::Mutex mu_;
  std::vector<FinishesLeft> made_ ABSL_GUARDED_BY(mu_);
};

// Returns a maker whose backends each have delays of their own. `control` may be null.
worker::BackendMaker MakeDeferredBackends(std::uint64_t seed, std::uint32_t max_started,
                                          std::shared_ptr<DeferredControl> control = nullptr);

}  // namespace flotilla::testing
