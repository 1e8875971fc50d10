// What DeferredBackend computes with: the memory of its worker thread, and the operations on it.
//
// deferred_device.cc adds and loads what is there before the first step, deferred_step.cc has most
// operations, and deferred_experts.cc, deferred_attention.cc and deferred_head.cc have the others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kv_layout.h"
#include "kernels/rope_table.h"
#include "tests/support/deferred_backend.h"
#include "tests/support/deferred_weights.h"
#include "worker/compute/backend.h"
#include "worker/compute/model_shard.h"
#include "worker/core/split_layout.h"

namespace flotilla::testing {

using kernels::kKvRecordTokens;
using worker::AttentionOp;
using worker::BufferHandle;
using worker::EmbeddingHandle;
using worker::ExpertsHandle;
using worker::HeadHandle;
using worker::HeadMatricesHandle;
using worker::MatrixHandle;
using worker::NormOp;
using worker::ProjectionHandle;
using worker::RopeHandle;
using worker::RowPartial;
using worker::RowRequest;
using worker::StepInputs;
using worker::StepSequence;
using worker::VectorHandle;

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// Floats behind each row that no operation may need.
inline constexpr std::int64_t kRowPadding = 5;

struct Buffer {
  std::int64_t width = 0;
  std::vector<std::vector<float>> rows;  // [rows of the step][width + kRowPadding]

  void Poison() {
    for (std::vector<float>& row : rows) std::fill(row.begin(), row.end(), kNaN);
  }
};

// A product over one subtree of the splits.
struct SubtreeProduct {
  std::int64_t first_k = 0;  // of the rank's own inputs
  Weights weights;
};

struct Matrix {
  MixedWeights weights;
  std::vector<float> bias;  // may be empty
};

using HeadMatrices = std::vector<Weights>;

struct Projection {
  std::int64_t inputs = 0;   // of this rank
  std::vector<float> bias;   // may be empty
  std::int64_t columns = 0;  // outputs
  std::vector<SubtreeProduct> products;
  worker::SumTree tree;  // over the products of all ranks
};

struct Experts {
  struct Expert {
    Weights gate_up;
    std::vector<float> bias;       // may be empty
    std::vector<Weights> down;     // of each of this rank's splits
    std::vector<float> down_bias;  // may be empty
  };
  model::MoeSpec spec;
  std::vector<float> router_bias, choice_bias;  // may be empty
  Weights router;
  std::optional<Weights> shared_router;
  std::vector<Expert> experts;
  std::int64_t hidden = 0;
  std::vector<worker::SplitPlace> splits;     // of this rank, from its first input on
  std::vector<worker::TreeProgram> products;  // whose loads are of this rank's splits
  worker::SumTree tree;                       // over the products of all ranks

  std::int64_t inputs() const { return splits.back().at + splits.back().width; }
};

// The experts of a row, ascending, and the logit of the shared one.
struct Route {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
  float shared_logit = kNaN;
};

struct HeadWeights {
  std::int64_t hidden = 0;
  std::int64_t vocabulary = 0;
  worker::VocabularyShard shard;
  std::optional<Weights> weights;  // none: the shard is empty
  std::vector<float> bias;         // may be empty
  float factor = 1, softcap = 0;

  std::int64_t tokens() const { return weights.has_value() ? weights->columns() : 0; }
};

// K and V of 16 tokens of one layer and head: [16 tokens][dim] each. V has nothing where it is a
// prefix of K.
struct Plane {
  std::vector<float> keys, values;
};
using Block = std::vector<Plane>;  // [layers, heads]
// Blocks by block id or slot. What is not there is all NaN.
using Blocks = std::unordered_map<std::uint32_t, Block>;

template <class Value>
using ByHandle = std::unordered_map<std::int32_t, Value>;

// RESOURCE_EXHAUSTED: this machine could not hold so many blocks.
absl::Status CheckMemory(const worker::KvShape& shape, std::uint32_t blocks);

// From Start to Finish. The caller makes and ends it; in between the worker thread has it.
struct DeferredBackend::Step {
  int rows = 0;  // of `inputs`, for the caller's thread
  StepInputs inputs;
  worker::RowReceiver* receiver = nullptr;
  std::vector<RowPartial> partials;  // [requests]
  bool done = false;                 // guarded by DeferredBackend::mu_
};

// The worker thread calls all methods but those that add, which come before the first step.
class DeferredBackend::Device {
 public:
  explicit Device(const worker::BackendOptions& options) : options_(options) {}

  BufferHandle AddBuffer(std::int64_t width) {
    return Keep<BufferHandle>(buffers_, Buffer{.width = width, .rows = {}});
  }
  VectorHandle AddVector(std::vector<float> values) {
    return Keep<VectorHandle>(vectors_, std::move(values));
  }
  RopeHandle AddRope(const model::RopeSpec& rope) {
    return Keep<RopeHandle>(
        ropes_, kernels::RopeTable(options_.max_positions, rope.frequencies, rope.magnitude));
  }
  EmbeddingHandle AddEmbedding(const worker::EmbeddingSource& source) {
    return Keep<EmbeddingHandle>(embeddings_, worker::EmbeddingSource(source));
  }
  absl::StatusOr<MatrixHandle> AddMatrix(std::vector<worker::MatrixPart> parts,
                                         std::vector<float> bias);
  absl::StatusOr<HeadMatricesHandle> AddHeadMatrices(std::vector<worker::MatrixPart> parts);
  absl::StatusOr<ProjectionHandle> AddProjection(const worker::ProjectionSource& source);
  absl::StatusOr<ExpertsHandle> AddExperts(const worker::ExpertsSource& source);
  absl::StatusOr<HeadHandle> AddHead(const worker::HeadSource& source);
  absl::Status Load();
  absl::Status CreateKv(const worker::KvShape& shape, std::uint32_t blocks, std::size_t tiers);

  bool Has(BufferHandle handle) const { return buffers_.contains(handle.index()); }
  bool Has(VectorHandle handle) const { return vectors_.contains(handle.index()); }
  bool Has(RopeHandle handle) const { return ropes_.contains(handle.index()); }
  bool Has(EmbeddingHandle handle) const { return embeddings_.contains(handle.index()); }
  bool Has(MatrixHandle handle) const { return matrices_.contains(handle.index()); }
  bool Has(HeadMatricesHandle handle) const { return head_matrices_.contains(handle.index()); }
  bool Has(ProjectionHandle handle) const { return projections_.contains(handle.index()); }
  bool Has(ExpertsHandle handle) const { return experts_.contains(handle.index()); }
  bool Has(HeadHandle handle) const { return heads_.contains(handle.index()); }
  bool Has(const worker::NormOp& norm) const {
    return Has(norm.weight) && (!norm.bias.valid() || Has(norm.bias));
  }
  bool Has(const AttentionOp& attention) const {
    const auto absent_or_there = [&](auto handle) { return !handle.valid() || Has(handle); };
    return absent_or_there(attention.rope) && absent_or_there(attention.slopes) &&
           absent_or_there(attention.sinks) &&
           (attention.head_norms == model::HeadNorms::kNone ||
            (Has(attention.query_norm) && Has(attention.key_norm)));
  }

  std::int64_t weight_bytes() const;
  std::int64_t buffer_bytes() const;

  absl::Status Begin(Step& step);
  void End();
  absl::Status MakeCopy(const BackgroundCopy& copy);

  absl::Status Embed(EmbeddingHandle table, BufferHandle out);
  absl::Status ReceiveResidual(BufferHandle x);
  absl::Status SendResidual(BufferHandle x);
  absl::Status NormInPlace(BufferHandle x, const NormOp& norm);
  absl::Status NormFor(BufferHandle x, const std::optional<NormOp>& norm, MatrixHandle next,
                       BufferHandle out);
  absl::Status Multiply(BufferHandle x, MatrixHandle matrix, BufferHandle out);
  absl::Status GateUp(BufferHandle x, MatrixHandle gate_up, const worker::FfnOp& ffn,
                      BufferHandle out);
  // Adds to `out`, or not.
  absl::Status RunProjection(BufferHandle x, ProjectionHandle projection, bool accumulate,
                             BufferHandle out);
  absl::Status RouteRows(BufferHandle x, const std::optional<NormOp>& norm, ExpertsHandle experts,
                         BufferHandle out);
  absl::Status GateUpExperts(BufferHandle x, ExpertsHandle experts, const worker::FfnOp& ffn,
                             BufferHandle out);
  // Adds to `out`, or not.
  absl::Status RunMixture(BufferHandle x, ExpertsHandle experts, bool accumulate, BufferHandle out);
  absl::Status ScaleShared(ExpertsHandle experts, BufferHandle x);
  absl::Status AddScaled(BufferHandle x, float factor, BufferHandle residual);
  absl::Status Absorb(const worker::LatentOp& op, BufferHandle queries, BufferHandle latent,
                      BufferHandle qkv);
  absl::Status MultiplyHeads(BufferHandle x, HeadMatricesHandle matrices,
                             const std::vector<std::int32_t>& places, BufferHandle out);
  absl::Status RopeAndStore(const AttentionOp& attention, BufferHandle qkv);
  absl::Status Attend(const AttentionOp& attention, BufferHandle qkv, BufferHandle out);
  absl::Status Head(BufferHandle x, const NormOp& norm, HeadHandle head);

 private:
  // What Norm leaves to the product that follows.
  struct Form {
    BufferHandle buffer;
    MatrixHandle matrix;
    std::vector<Operand> rows;
  };
  // Blocks in the layout of the kernels.
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  template <class Handle, class Value>
  Handle Keep(ByHandle<Value>& values, Value value) {
    values.emplace(++last_handle_, std::move(value));
    return Handle(last_handle_);
  }
  bool alone() const { return options_.tensor_ranks == 1; }
  const StepInputs& inputs() const { return step_->inputs; }
  std::size_t rows() const { return static_cast<std::size_t>(inputs().rows()); }

  absl::Status CheckInputs() const;
  absl::Status CheckSequence(std::size_t index) const;
  absl::Status CheckRequests() const;
  absl::Status CheckAttention(const AttentionOp& attention, const Buffer& qkv) const;
  bool HasBlock(BlockId block) const { return block.value() < block_count_; }
  std::size_t PlaneOf(const AttentionOp& attention, int kv_head) const {
    return static_cast<std::size_t>(attention.layer * kv_shape_.kv_heads + kv_head);
  }
  // The n floats from x on, normed with the weights from `first_weight` on.
  std::vector<float> Normed(const NormOp& norm, const float* x, std::int64_t n,
                            std::int64_t first_weight = 0) const;
  std::int64_t SizeOf(const NormOp& norm) const {
    return static_cast<std::int64_t>(vectors_.at(norm.weight.index()).size());
  }
  const float* DataOf(VectorHandle handle) const {
    return handle.valid() ? vectors_.at(handle.index()).data() : nullptr;
  }
  absl::StatusOr<std::vector<Operand>> TakeForm(BufferHandle x, MatrixHandle matrix);
  // out = the sum of all ranks' parts, [places][rows][columns] each, or += it.
  void AddParts(const worker::SumTree& tree, std::int64_t columns,
                absl::Span<const float* const> parts, bool accumulate, Buffer& out) const;
  // The same of this rank's `sums`, after the exchange.
  absl::Status ShareSums(const worker::SumTree& tree, std::int64_t columns,
                         const std::vector<float>& sums, bool accumulate, Buffer& out);
  // One product of a row's mixture, from the row's activations.
  std::vector<float> MixRow(const Experts& experts, const worker::TreeProgram& program,
                            const Route& route, const float* x, std::int64_t x_stride) const;
  // x * the matrix, for one row of one head.
  std::vector<float> MultiplyHead(const Weights& matrix, const float* x) const;
  void NormHeads(const AttentionOp& attention, float* heads, int count, const NormOp& norm) const;
  void WriteKv(std::uint32_t block, std::size_t plane, int slot, const model::KvScales& scales,
               const float* k, const float* v);
  std::vector<Line> GatherKv(const std::int32_t* table, int count, std::size_t plane) const;
  // Fills this rank's columns of the tile that begins with request `first`. Returns the tile, which
  // is complete in the rows that this rank gets.
  const float* ShareTile(const HeadWeights& head, std::size_t first,
                         const std::vector<std::vector<float>>& rows);
  absl::Status GiveRow(std::size_t request, absl::Span<const float> logits);

  const worker::BackendOptions options_;

  std::int32_t last_handle_ = 0;  // of any kind
  ByHandle<Buffer> buffers_;
  ByHandle<std::vector<float>> vectors_;
  ByHandle<kernels::RopeTable> ropes_;
  ByHandle<worker::EmbeddingSource> embeddings_;
  ByHandle<Matrix> matrices_;
  ByHandle<HeadMatrices> head_matrices_;
  ByHandle<Projection> projections_;
  ByHandle<Experts> experts_;
  ByHandle<HeadWeights> heads_;

  worker::KvShape kv_shape_;
  std::uint32_t block_count_ = 0;
  Blocks kv_;                  // by block id
  std::vector<Blocks> slots_;  // of each tier

  Step* step_ = nullptr;  // in work
  Form form_;
  ExpertsHandle routed_;  // what `routes_` is for
  std::vector<Route> routes_;
};

}  // namespace flotilla::testing
