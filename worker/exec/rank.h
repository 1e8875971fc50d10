// Rank: all that one rank computes with (its shard of weights and KV memory, forward,
// sampler) and the step that uses them. Batches go in, samples come out.
//
// An executor or a rank process owns the Rank. One thread at a time calls it, and the
// pool's threads work for that thread inside a call. A Rank knows no plans, epochs or
// queues: GroupState decides what to run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/rt/clock.h"
#include "common/types/executor.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"
#include "model/spec.h"
#include "worker/comm/communicator.h"
#include "worker/compute/forward.h"
#include "worker/compute/kv_cache.h"
#include "worker/compute/step_outputs.h"
#include "worker/compute/thread_pool.h"
#include "worker/compute/tier_store.h"
#include "worker/compute/weights.h"
#include "worker/core/group_state.h"
#include "worker/core/ngram_proposer.h"
#include "worker/core/proposer.h"

namespace flotilla::worker {

// Which proposer makes the draft tokens that plans allow. It never changes a result.
enum class Speculation : std::uint8_t {
  kOff,
  kNgram,  // NgramProposer: what followed the same tokens before
  kDraft,  // DraftModel: the model's own first layers
};

struct RankOptions {
  std::string model_id;  // as clients name it
  Recipe recipe = Recipe::kAccurate;
  kernels::KvFormat kv_format = kernels::KvFormat::kBf16;
  kernels::Isa isa = kernels::DetectIsas().back();  // must be supported
  ParallelShape shape;                              // ranks of the group
  ShardBalance balance = ShardBalance::kStep;
  int threads = 0;                // compute threads of a rank; 0: its share of AvailableCpus()
  std::uint32_t kv_blocks = 0;    // usable blocks of 16 tokens; 0: DefaultBlockCount
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
};

// How a model is laid out over the ranks of a group.
struct GroupLayout {
  ParallelShape shape;
  std::vector<ModelShard> shards;  // one per rank
  Communicator::Limits limits;     // what their communicators must hold
};

// Lays out the ranks of a group. INVALID_ARGUMENT: an option is wrong, or the model cannot
// be cut into the shape.
absl::StatusOr<GroupLayout> PlanGroup(const model::Checkpoint& file, const RankOptions& options);

class Rank {
 public:
  // More draft tokens than this are not worth their rows on any machine.
  static constexpr std::uint32_t kMaxDraftTokens = 64;

  // Packs the weights and runs a warm-up step, which touches all weights and measures the
  // rates of the description. `communicator` is this rank's and outlives the rank. It
  // belongs to a group that PlanGroup has laid out, and all ranks of the group are created
  // at the same time. Null: this is the only rank.
  // INVALID_ARGUMENT or UNIMPLEMENTED: the model or an option cannot be served;
  // RESOURCE_EXHAUSTED: not enough memory; UNAVAILABLE: another rank has failed.
  static absl::StatusOr<std::unique_ptr<Rank>> Create(std::shared_ptr<const model::Checkpoint> file,
                                                      const RankOptions& options,
                                                      const Clock& clock,
                                                      Communicator* communicator = nullptr);

  // Does the batch's copies, starts its background copies, then runs forward and sampling.
  // The batch fits the description. With several ranks, each has the outputs of some
  // requests.
  StepOutputs Execute(const Batch& batch);

  // TakeCopiesDone returns the background copies that have ended (TierStore::TakeDone).
  // ForgetCopies forgets all of them (TierStore::Reset).
  absl::StatusOr<std::vector<std::uint64_t>> TakeCopiesDone(bool wait) {
    return tiers_->TakeDone(wait);
  }
  void ForgetCopies() { tiers_->Reset(); }
  // Makes the proposer for the sequences of one epoch, as the options say; null for kOff.
  // The proposer uses the rank, so the rank must outlive it, and a call of Propose counts
  // as a call of the rank.
  std::unique_ptr<Proposer> MakeProposer();

  // Call it when the block was just granted to hold new tokens. Poisons the block if the
  // options say so.
  void OnGranted(BlockId block) {
    if (options_.poison_blocks) cache_.Poison(block);
  }

  const ExecutorDescription& description() const { return description_; }
  const model::ModelSpec& spec() const { return spec_; }

  std::int64_t weight_bytes() const { return weights_.bytes; }
  std::int64_t buffer_bytes() const { return forward_->buffer_bytes(); }

 private:
  Rank(std::shared_ptr<const model::Checkpoint> file, const RankOptions& options,
       model::ModelSpec spec, int threads, Communicator* communicator);
  absl::Status Load(const Clock& clock);
  void Describe();
  void WarmUp(const Clock& clock);
  // Returns the nanoseconds that a batch of one sequence takes. Changes no block in use.
  std::int64_t TimeBatch(int rows, const Clock& clock);

  const std::shared_ptr<const model::Checkpoint> file_;  // the table of token vectors
  const RankOptions options_;
  const model::ModelSpec spec_;
  Communicator* const communicator_;
  const kernels::Ops& ops_;
  ThreadPool pool_;
  Weights weights_;
  // Set where each rank of the last stage has a shard of the vocabulary.
  std::optional<VocabularyShards> vocabulary_;
  KvCache cache_;
  std::unique_ptr<TierStore> tiers_;
  std::unique_ptr<Forward> forward_;
  ExecutorDescription description_;
};

}  // namespace flotilla::worker
