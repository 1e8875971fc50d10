// Ranks that run plans (plans.h), and what they answer: the bits of logits, and of what rows of
// logits are reduced to. Machine is a rank that has a whole model. RunGroup makes several ranks,
// which exchange over shared memory, or over NCCL if they have a GPU each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/rt/clock.h"
#include "tests/gpu_check/model_cases.h"
#include "tests/gpu_check/plans.h"
#include "worker/comm/exchange.h"
#include "worker/compute/backend.h"
#include "worker/compute/cuda/nccl_api.h"
#include "worker/compute/decoder/decoder.h"
#include "worker/compute/model_shard.h"
#include "worker/compute/row_partials.h"
#include "worker/core/sharding.h"
#include "worker/device/device.h"

namespace flotilla::kernels::cuda {

// Takes the full rows of one step.
class Rows final : public worker::RowReceiver {
 public:
  void TakeRow(int request, absl::Span<const float> logits) override;
  // Returns them by request.
  std::map<int, std::vector<float>> Take();

 private:
  absl::Mutex mu_;
  std::map<int, std::vector<float>> rows_ ABSL_GUARDED_BY(mu_);
};

struct StepOutcome {
  std::vector<worker::RowPartial> partials;  // by request
  std::map<int, std::vector<float>> rows;
};
using RankOutcome = std::vector<StepOutcome>;  // by step

// The answer to one request, as bits.
struct Answer {
  std::vector<uint32_t> row;         // the logits
  std::vector<uint32_t> partial;     // of a rank that has the whole vocabulary
  std::vector<uint32_t> conclusion;  // of all ranks: token, log-probabilities
};
using Answers = std::vector<std::pair<Asked, Answer>>;

struct Setup {
  const ModelCase& model_case;
  const Model& model;
  int max_rows = 0;
  uint32_t blocks = 0;
  worker::TierOptions tiers = {};

  int tier_count() const { return (tiers.host_blocks > 0) + (tiers.disk_blocks > 0); }
};

// One rank of a group. One thread uses it.
class Rank {
 public:
  Rank(const Setup& setup, worker::ParallelShape shape, uint32_t rank)
      : setup_(setup), shape_(shape), rank_(rank) {}

  absl::Status Load(absl::Span<const worker::ModelShard> shards, worker::Exchange* exchange,
                    const worker::BackendMaker& make);

  int64_t weight_bytes() const { return backend_->weight_bytes(); }

  // Runs a plan. `lag` steps are not finished when the next starts.
  absl::StatusOr<RankOutcome> Run(const Plan& plan, size_t lag);

 private:
  // Waits until so many copies have ended; `done` counts them.
  absl::Status AwaitCopies(int count, int& done);

  absl::Status FinishAllBut(size_t count, RankOutcome& outcome);

  const Setup& setup_;
  const worker::ParallelShape shape_;
  const uint32_t rank_;
  const SteadyClock clock_;
  std::deque<Rows> receivers_;  // of the steps that are not finished
  std::unique_ptr<worker::Backend> backend_;
  std::optional<worker::Decoder> decoder_;
};

// The only rank of a model.
class Machine {
 public:
  Machine(const Setup& setup, const worker::BackendMaker& make);

  absl::StatusOr<Answers> Run(const Plan& plan, size_t lag);

 private:
  const Setup& setup_;
  const worker::ModelShard shard_;
  Rank rank_;
  const absl::Status loaded_;
};

// GPUs for ranks that have one each, and NCCL, over which these exchange.
struct NcclGpus {
  int count = 0;
  // Opens a GPU by its number. Any thread calls it.
  std::function<absl::StatusOr<std::unique_ptr<worker::Device>>(int)> open_device;
  // Opens NCCL for one group.
  std::function<absl::StatusOr<std::shared_ptr<const worker::NcclApi>>()> open_nccl;
};

// Runs a plan on a group of ranks, which are threads. They use the makers in turn; or, where there
// are `gpus`, one of these each.
absl::StatusOr<Answers> RunGroup(const Setup& setup, worker::ParallelShape shape, const Plan& plan,
                                 const std::vector<worker::BackendMaker>& makers,
                                 const NcclGpus* gpus = nullptr);

}  // namespace flotilla::kernels::cuda
