// Rank: all that one rank computes with (a backend with its shard of weights and KV memory, the
// decoder, the sampler) and the step that uses them. Batches go in, outputs come out.
//
// An executor or a rank process owns the Rank. One thread at a time calls it. A Rank knows no
// plans, epochs or queues: GroupState decides what to run. What computes is a Backend, that of CPUs
// or that of GPUs; the rank itself only draws tokens from full rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/rt/available_memory.h"
#include "common/rt/clock.h"
#include "common/rt/load_progress.h"
#include "common/types/executor.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"
#include "model/page_releaser.h"
#include "model/spec.h"
#include "worker/comm/communicator.h"
#include "worker/comm/exchange.h"
#include "worker/comm/limits.h"
#include "worker/compute/backend.h"
#include "worker/compute/decoder/decoder.h"
#include "worker/compute/model_shard.h"
#include "worker/compute/step_outputs.h"
#include "worker/constraint/compile_messages.h"
#include "worker/core/group_state.h"
#include "worker/core/ngram_proposer.h"
#include "worker/core/proposer.h"
#include "worker/device/device_choice.h"
#include "worker/device/make_device.h"
#include "worker/exec/constraint_room.h"
#include "worker/exec/rank_device.h"

namespace flotilla::worker {

class CudaBackend;
struct NcclApi;

// Opens NCCL, as OpenNccl (worker/compute/cuda/nccl_api.h) or what a test puts in its place.
using NcclOpener = std::function<absl::StatusOr<std::shared_ptr<const NcclApi>>()>;

// Which proposer makes the draft tokens that plans allow. It never changes a result.
enum class Speculation : std::uint8_t {
  kOff,
  kNgram,  // NgramProposer: what followed the same tokens before
  kDraft,  // DraftModel: the model's own first layers
};

struct RankOptions {
  std::string model_id;  // as clients name it
  Recipe recipe = Recipe::kAccurate;
  KvFormats kv_format = kernels::KvFormat::kBf16;
  kernels::Isa isa = kernels::DetectIsas().back();  // must be supported
  DeviceChoice device;                              // of all ranks of the group
  int local_rank = 0;                               // number of this rank among those of its host
  ParallelShape shape;                              // ranks of the group
  ShardBalance balance = ShardBalance::kStep;
  int threads = 0;                // compute threads of a rank; 0: its share of AvailableCpus()
  std::uint32_t kv_blocks = 0;    // usable blocks of 16 tokens; 0: DefaultBlockCount
  int kv_share_percent = 0;       // of the memory that is free, if kv_blocks is 0; 0: the backend's
  std::uint32_t max_context = 0;  // positions of a sequence; 0: the file's
  std::uint32_t max_step_tokens = 512;
  std::uint32_t max_sequences = 256;
  TierOptions tiers;
  Speculation speculation = Speculation::kOff;
  std::uint32_t draft_tokens = 8;  // the most that a decode may draft; 1..kMaxDraftTokens
  std::uint32_t draft_layers = 0;  // of the draft model; 0: a third of the model's
  NgramOptions ngram;
  // Tests: blocks hold NaN until they are written.
  bool poison_blocks = false;
  // How far the load is is written here. Outlives the rank; null: nobody wants to know.
  LoadProgress* progress = nullptr;
  // Makes what computes; null: it is as `device` says.
  BackendMaker make_backend;
  // The memory that ranks on CPUs may take; null: that of the kernel's files.
  std::function<AvailableMemory()> available_memory;
  // Makes the device of a GPU; null: MakeDevice.
  DeviceMaker make_device;
  // Opens NCCL, where every rank has a GPU of its own; null: OpenNccl.
  NcclOpener open_nccl;
  // Ends the process after an error of a rank on a GPU. Where it was the GPU's, no GPU of the
  // process does any more work, and an executor would load the model again in vain. Null: executors
  // load it again, as after errors of ranks on CPUs.
  std::function<void(const std::string& why)> end_process;
  // Compiles the grammars of constraints (CompilerOptions::program): flotilla itself.
  std::string constraint_program = "/proc/self/exe";
  CompileLimits compile_limits;
  // Lets time pass while a GPU's memory comes free (MakeWithFreeMemory); null: absl::SleepFor.
  std::function<void(absl::Duration)> sleep;
};

// How a rank talks to the others of its group. Both outlive the rank; null: the rank is alone.
struct RankLinks {
  Communicator* communicator = nullptr;
  Exchange* exchange = nullptr;
};

// How a model is laid out over the ranks of a group.
struct GroupLayout {
  ParallelShape shape;
  std::vector<ModelShard> shards;  // one per rank
  CommLimits limits;               // what their communicators must hold
};

// Lays out the ranks of a group. INVALID_ARGUMENT: an option is wrong, or the model cannot
// be cut into the shape.
absl::StatusOr<GroupLayout> PlanGroup(const model::Checkpoint& file, const RankOptions& options);

class Rank {
 public:
  // More draft tokens than this are not worth their rows on any machine.
  static constexpr std::uint32_t kMaxDraftTokens = 64;

  // Loads the weights and runs a warm-up step, which touches all weights and measures the
  // rates of the description. `links` are this rank's, in a group that PlanGroup has laid out;
  // all ranks of the group are created at the same time.
  // INVALID_ARGUMENT or UNIMPLEMENTED: the model or an option cannot be served;
  // FAILED_PRECONDITION: the device cannot be had; RESOURCE_EXHAUSTED: not enough memory;
  // UNAVAILABLE: another rank has failed.
  static absl::StatusOr<std::unique_ptr<Rank>> Create(std::shared_ptr<const model::Checkpoint> file,
                                                      const RankOptions& options,
                                                      const Clock& clock, RankLinks links = {});

  // Start starts a step: the batch's copies, its background copies, decoder and sampling. `granted`
  // are blocks, and `opened` sequences with open runs, whose contents are to become undefined
  // first. The batch fits the description, and is not needed afterwards. Finish waits for the
  // oldest step started, whose outputs Start has returned; of several ranks, each of the last stage
  // then has the outputs of some requests. Up to lag + 1 steps may be started and not finished. An
  // error means that the rank computes nothing any more.
  std::unique_ptr<StepOutputs> Start(const Batch& batch, std::vector<BlockId> granted = {},
                                     std::vector<SequenceHandle> opened = {});
  absl::Status Finish(StepOutputs& outputs);

  // As Backend::TakeCopiesDone and ForgetCopies.
  absl::StatusOr<std::vector<std::uint64_t>> TakeCopiesDone(bool wait) {
    return backend_->TakeCopiesDone(wait);
  }
  void ForgetCopies() { backend_->ForgetCopies(); }
  // Makes the proposer for the sequences of one epoch, as the options say; null for kOff.
  // The proposer uses the rank, so the rank must outlive it, and a call of Propose counts
  // as a call of the rank.
  std::unique_ptr<Proposer> MakeProposer();

  const ExecutorDescription& description() const { return description_; }
  const model::ModelSpec& spec() const { return spec_; }
  const RankDevice& device() const { return device_; }

  std::int64_t weight_bytes() const { return backend_->weight_bytes(); }
  std::int64_t buffer_bytes() const { return backend_->buffer_bytes(); }

 private:
  Rank(std::shared_ptr<const model::Checkpoint> file, const RankOptions& options,
       model::ModelSpec spec, RankLinks links);
  absl::Status Load(int threads, const Clock& clock);
  void Begin(LoadPhase phase) {
    if (options_.progress != nullptr) options_.progress->Begin(phase, 0);
  }
  // Makes what computes, as the options say, and loads part `number` of the model on it.
  absl::Status LoadBackend(const BackendOptions& options, absl::Span<const ModelShard> shards,
                           std::uint32_t number);
  // FAILED_PRECONDITION: there is no GPU; UNIMPLEMENTED: GPUs do not compute such a model.
  absl::Status LoadOnGpu(const BackendOptions& options, absl::Span<const ModelShard> shards,
                         std::uint32_t number);
  absl::Status LoadOn(std::unique_ptr<Backend> backend, absl::Span<const ModelShard> shards,
                      std::uint32_t number);
  // Tells the other ranks why this one does not take part in something (empty: it does). Returns
  // the reason of the first rank that has one. UNAVAILABLE: another rank has failed.
  absl::StatusOr<std::string> AgreeOn(const std::string& refusal);
  // Chooses with the other ranks, which all compute on GPUs, how these exchange activations: with
  // NCCL where every rank has a GPU of its own and can open the same version, else through the
  // host. UNAVAILABLE: another rank has failed; other errors: NCCL has.
  absl::Status AgreeOnExchange();
  // The number of KV blocks where the operator names none, with all ranks: the lowest of what they
  // have room for. device_ says where it comes from, if that is this rank. UNAVAILABLE: another
  // rank has failed.
  absl::StatusOr<std::uint32_t> AgreeOnBlocks(const KvShape& own, BlockNeeds needs);
  KvShape OwnKvShape(const ModelShard& shard) const;
  absl::Status CreateKv(const ModelShard& shard);
  void Describe();
  absl::Status WarmUp(const Clock& clock);
  // Returns the nanoseconds that a batch of one sequence takes. Changes no block in use.
  absl::StatusOr<std::int64_t> TimeBatch(int rows, const Clock& clock);
  // Asks for the masks of the rows that this rank draws under constraints.
  void BeginMasks(const Batch& batch, StepOutputs& outputs);
  bool last_stage() const {
    return links_.communicator == nullptr || links_.communicator->last_stage();
  }

  const std::shared_ptr<const model::Checkpoint> file_;  // the table of token vectors
  model::PageReleaser pages_;                            // of the file, while it is loaded
  const RankOptions options_;
  const model::ModelSpec spec_;
  const RankLinks links_;
  const kernels::Ops& host_ops_;  // for full rows of logits
  RankDevice device_;
  bool on_gpu_ = false, cuda_is_proven_ = true, uses_nccl_ = false;
  std::unique_ptr<Backend> backend_;
  CudaBackend* cuda_ = nullptr;                 // the backend, where LoadOnGpu has made it
  std::optional<ConstraintRoom> constraints_;   // of the ranks of the last stage
  std::optional<Decoder> decoder_;              // set by Load, as the next
  std::optional<VocabularyShards> vocabulary_;  // of the ranks of the last stage
  std::uint64_t content_hash_ = 0;              // of the file's metadata and tensors
  ExecutorDescription description_;
};

}  // namespace flotilla::worker
