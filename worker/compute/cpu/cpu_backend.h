// CpuBackend: the Backend of x86 CPUs: a table of ops (kernels/ops.h), a pool of threads, and how
// rows, panels and heads are cut over them.
//
// Every operation computes at once, so a step is done before its Finish. The pool's threads do the
// work of an operation in one phase each. The result of a row depends on its sequence alone: the
// ops fix the order of every reduction, and this class only cuts ranges. Buffers are allocated
// once, for `max_rows` rows; a step allocates nothing that grows with rows or context but its
// inputs.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/rt/aligned_buffer.h"
#include "kernels/ops.h"
#include "kernels/rope_table.h"
#include "worker/compute/backend.h"
#include "worker/compute/cpu/kv_cache.h"
#include "worker/compute/host/thread_pool.h"
#include "worker/compute/host/tier_store.h"
#include "worker/compute/host/weight_packer.h"
#include "worker/compute/open_runs.h"
#include "worker/core/split_layout.h"

namespace flotilla::worker {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const BackendOptions& options);

  absl::Status Check(const model::ModelSpec& spec) const override;
  BufferHandle AddBuffer(std::int64_t width) override;
  VectorHandle AddVector(std::vector<float> values) override;
  RopeHandle AddRope(const model::RopeSpec& rope) override;
  EmbeddingHandle AddEmbedding(const EmbeddingSource& source) override;
  absl::StatusOr<MatrixHandle> AddMatrix(std::vector<MatrixPart> parts,
                                         std::vector<float> bias) override;
  absl::StatusOr<HeadMatricesHandle> AddHeadMatrices(std::vector<MatrixPart> parts) override;
  absl::StatusOr<ProjectionHandle> AddProjection(const ProjectionSource& source) override;
  absl::StatusOr<ExpertsHandle> AddExperts(const ExpertsSource& source) override;
  absl::StatusOr<HeadHandle> AddHead(const HeadSource& source) override;
  absl::Status Load() override;

  // The kernel's id of this boot, which all ranks of a host have.
  std::string memory_id() const override;
  BlockChoice DefaultBlockCount(const KvShape& own, const BlockNeeds& needs) const override;
  absl::Status CreateKv(const KvShape& shape, std::uint32_t blocks,
                        const TierOptions& tiers) override;
  const std::vector<KvTier>& tiers() const override { return tiers_->tiers(); }
  absl::StatusOr<std::vector<std::uint64_t>> TakeCopiesDone(bool wait) override {
    return tiers_->TakeDone(wait);
  }
  void ForgetCopies() override { tiers_->Reset(); }

  void Start(StepInputs inputs, RowReceiver* receiver) override;
  void Embed(EmbeddingHandle table, BufferHandle out) override;
  void ReceiveResidual(BufferHandle x) override;
  void SendResidual(BufferHandle x) override;
  void NormInPlace(BufferHandle x, const NormOp& norm) override;
  void Norm(BufferHandle x, const NormOp& norm, MatrixHandle next, BufferHandle out) override;
  void Prepare(BufferHandle x, MatrixHandle next, BufferHandle out) override;
  void Multiply(BufferHandle x, MatrixHandle matrix, BufferHandle out) override;
  void GateUp(BufferHandle x, MatrixHandle gate_up, const FfnOp& ffn, BufferHandle out) override;
  void AddProjection(BufferHandle x, ProjectionHandle projection, BufferHandle residual) override;
  void Project(BufferHandle x, ProjectionHandle projection, BufferHandle out) override;
  void RouteRows(BufferHandle x, const std::optional<NormOp>& norm, ExpertsHandle experts,
                 BufferHandle out) override;
  void GateUpExperts(BufferHandle x, ExpertsHandle experts, const FfnOp& ffn,
                     BufferHandle out) override;
  void AddMixture(BufferHandle x, ExpertsHandle experts, BufferHandle residual) override {
    RunMixture(x, experts, /*accumulate=*/true, residual);
  }
  void Mix(BufferHandle x, ExpertsHandle experts, BufferHandle out) override {
    RunMixture(x, experts, /*accumulate=*/false, out);
  }
  void ScaleShared(ExpertsHandle experts, BufferHandle x) override;
  void AddScaled(BufferHandle x, float factor, BufferHandle residual) override;
  void Absorb(const LatentOp& op, BufferHandle queries, BufferHandle latent,
              BufferHandle qkv) override;
  void MultiplyHeads(BufferHandle x, HeadMatricesHandle matrices,
                     const std::vector<std::int32_t>& places, BufferHandle out) override;
  void RopeAndStore(const AttentionOp& attention, BufferHandle qkv) override;
  void Attend(const AttentionOp& attention, BufferHandle qkv, BufferHandle out) override;
  void Head(BufferHandle x, const NormOp& norm, HeadHandle head) override;
  absl::StatusOr<std::vector<RowPartial>> Finish() override;

  void OnHost(std::int64_t count, absl::FunctionRef<void(std::int64_t)> fn) override {
    pool_.ParallelItems(count, fn);
  }
  std::int64_t weight_bytes() const override { return packer_.bytes(); }
  std::int64_t buffer_bytes() const override;

 protected:
  int rows() const { return inputs_.rows(); }
  // The rows of the step in a buffer, one after the other, each as wide as the buffer.
  absl::Span<const float> RowsOf(BufferHandle handle) const {
    const Buffer& buffer = buffers_[handle.index()];
    return {buffer.data.data(), static_cast<std::size_t>(rows() * buffer.width)};
  }

 private:
  // So many panels of gate and of up are made before their activation, while they are in L2.
  static constexpr std::int64_t kFusedPanels = 6;
  static std::int64_t Panels(std::int64_t columns) {
    return (columns + kernels::kPanelColumns - 1) / kernels::kPanelColumns;
  }

  // Says that the load, which includes the first steps, gets further.
  void NoteMove() {
    if (options_.progress != nullptr) options_.progress->Move();
  }
  struct Buffer {
    std::int64_t width = 0;
    AlignedBuffer<float> data;  // [max_rows, width]
  };
  // A product over some of the splits: one complete subtree of the split tree, or the whole tree.
  struct SplitProduct {
    const kernels::PackedMatrix* matrix;
    std::int64_t first_k;  // of the rank's own columns
    int first_split;       // of the rank's own splits
  };
  // Outputs of one format, from `column` of their matrix on.
  struct Piece {
    kernels::MatrixView view;
    std::int64_t column;
    int form;  // of the quantised rows that it is multiplied by, as Matrix::forms counts them
  };
  struct Matrix {
    std::vector<Piece> pieces;  // of consecutive outputs
    std::vector<float> bias;    // [columns]; empty: none
    // In how many forms rows are quantised for the pieces: one for each activation scheme. That of
    // number f begins at f * k.
    int forms = 0;

    std::int64_t columns() const { return pieces.back().column + pieces.back().view.columns; }
    std::int64_t panels() const;
  };
  // The matrices of all heads are one, each beginning with a panel.
  struct HeadMatrices {
    std::vector<kernels::MatrixView> views;  // [heads]

    int k() const { return views.front().k; }
    int columns() const { return views.front().columns; }
  };
  struct Projection {
    std::vector<float> bias;  // [columns]; empty: none
    std::vector<SplitProduct> products;
    std::vector<kernels::MatrixView> views;  // of the products
    SumTree tree;                            // over all ranks' products; empty if the rank is alone
  };
  struct Experts {
    struct Expert {
      const kernels::PackedMatrix* gate_up;
      std::vector<float> bias;            // as that of a matrix
      const kernels::PackedMatrix* down;  // of the rank's splits
      std::vector<float> down_bias;       // [hidden]; empty: none
    };
    model::MoeSpec spec;
    const kernels::PackedMatrix* router;
    std::vector<float> router_bias, choice_bias;  // [experts]; empty: none
    const kernels::PackedMatrix* shared_router;   // null: none
    std::vector<Expert> experts;
    // The rank's splits, from its first input on, and the trees of the sums that it makes of them.
    std::vector<SplitPlace> splits;
    std::vector<TreeProgram> products;
    SumTree tree;             // over all ranks' products; empty if the rank is alone
    std::int64_t inputs = 0;  // of the rank's splits
  };
  // The rows of a step by expert. A row is there once for each of its experts, and the rows of an
  // expert follow each other, ascending.
  struct Routing {
    std::vector<std::int32_t> begins;  // [experts + 1]
    std::vector<std::int32_t> rows;    // [pairs]
    std::vector<std::int32_t> used;    // experts that have rows, ascending
    std::vector<std::int32_t> places;  // [experts], for sorting
    AlignedBuffer<std::int32_t> ids;   // [rows, chosen]
    AlignedBuffer<float> row_weights;  // [rows, chosen]
    AlignedBuffer<float> weights;      // [pairs]
    AlignedBuffer<float> logits;       // [rows, experts]
    AlignedBuffer<float> shared;       // [rows] logits of the shared expert
    // What gate and up multiply, or quantised down: one split after the other, [pairs, inputs of
    // the split] each.
    AlignedBuffer<float> x;  // [pairs, hidden]
    AlignedBuffer<std::int16_t> values;
    AlignedBuffer<float> group_sums;
    AlignedBuffer<float> scales;
    // For each thread, the registers of a tree and a product: columns of a panel.
    std::vector<AlignedBuffer<float>> scratch;
    std::vector<std::atomic<bool>> taken;  // [threads] who has which scratch

    // The expert of a pair.
    std::int32_t ExpertOf(std::int64_t pair) const {
      const auto after = std::upper_bound(begins.begin(), begins.begin() + used.back() + 2, pair);
      return static_cast<std::int32_t>(after - begins.begin()) - 1;
    }
  };
  struct HeadWeights {
    const kernels::PackedMatrix* matrix;  // null: the rank has no chunk of the vocabulary
    VocabularyShard shard;
    std::int64_t vocabulary;
    std::int64_t size;        // tokens of the shard
    std::vector<float> bias;  // [size]; empty: none
    float factor, softcap;
  };
  // Part of one sequence's queries against one KV head.
  struct AttentionItem {
    int sequence;
    int row;  // first row, within the sequence's rows
    int rows;
  };
  // out (+)= x * matrix. Where the recipe quantises, x means the rows quantised last.
  struct Product {
    const kernels::MatrixView& matrix;
    const float* x;  // [rows, matrix.k]
    std::int64_t x_stride;
    float* out;  // [rows, matrix.columns]
    std::int64_t out_stride;
    bool accumulate = false;
    int rows = 0;
    // Where the quantised rows of x begin.
    std::int64_t first_k = 0;
    std::int64_t first_split = 0;
  };

  bool alone() const { return options_.tensor_ranks == 1; }
  Buffer& At(BufferHandle handle) { return buffers_[handle.index()]; }
  // Null if the handle is not valid.
  const float* At(VectorHandle handle) const {
    return handle.valid() ? vectors_[handle.index()].data() : nullptr;
  }

  void PlanAttention();
  // The cache and the open runs of a layer as kernels see them, and for one sequence of the step.
  struct LayerKv {
    kernels::KvView cache, open;
  };
  LayerKv KvOf(const AttentionOp& attention) const {
    return {cache_.Layer(attention.layer), cache_.OpenRuns(attention.layer)};
  }
  LayerKv KvOf(LayerKv layer, const AttentionOp& attention, int sequence) const;
  // Of all heads of the rows from `row` on, whose first position is 0.
  static kernels::KvWriteArgs KvWriteOf(const AttentionOp& attention, const LayerKv& kv,
                                        const Buffer& qkv, std::int64_t row);
  // K and V of one KV head of a row at position 0, which are head 0 there. They are in memory of
  // the calling thread, until its next call.
  LayerKv StoreAlone(const AttentionOp& attention, LayerKv layer, const Buffer& qkv,
                     std::int64_t row, int head) const;
  // Stores position 0 in the open run of a sequence (StepSequence::is_first_row).
  void StoreFirstRow(const AttentionOp& attention, const LayerKv& layer, const Buffer& qkv,
                     const StepSequence& sequence) const;
  // Seals the runs that the step has filled.
  void SealRuns(const AttentionOp& attention);
  // Norms `count` vectors of n floats, one every in_stride, to `out`.
  void NormRows(const NormOp& norm, const float* x, std::int64_t in_stride, int n, float* out,
                std::int64_t out_stride, std::int64_t begin, std::int64_t end) const;
  // Norm and Prepare. Null: no norm.
  void NormFor(BufferHandle x, const NormOp* norm, MatrixHandle next, BufferHandle out);
  // Makes room for the routing of such experts.
  void ReserveRouting(const Experts& experts, std::int64_t hidden);
  void SortRows(const Experts& experts);
  // Copies the rows of the step into the order of the pairs, quantised where matrices want that.
  void GatherRows(const Experts& experts, const Buffer& x);
  std::int64_t Pairs(const Experts& experts) const {
    return std::int64_t{rows()} * experts.spec.chosen;
  }
  // AddMixture, or Mix where `accumulate` is false.
  void RunMixture(BufferHandle x, ExpertsHandle experts, bool accumulate, BufferHandle out);
  void QuantizeSplits(const Experts& experts, const float* x, std::int64_t x_stride);
  // The sums of product `product` of the mixture, in one panel: [rows][columns of a panel].
  const float* MixPanel(const Experts& experts, std::size_t product, int panel, const float* x,
                        std::int64_t x_stride, float* scratch);
  void AddDownBiases(const Experts& experts, Buffer& out);
  // x of each head, one every `x_head` floats, times its matrix, to its place.
  void RunHeads(const HeadMatrices& matrices, const Buffer& x, std::int64_t x_head,
                absl::Span<const std::int32_t> places, Buffer& out);
  // AddProjection, or Project where `accumulate` is false.
  void RunProjection(BufferHandle x, ProjectionHandle projection, bool accumulate,
                     BufferHandle out);
  // out = x * panels [begin, end) of the piece, plus their bias, in the columns that they have.
  void MultiplyPiece(const Matrix& weights, const Piece& piece, std::int64_t begin,
                     std::int64_t end, const Buffer& x, Buffer& out);
  // Adds bias[column, ...) to `count` columns of each row of the step.
  void AddBias(const std::vector<float>& bias, Buffer& out, std::int64_t column,
               std::int64_t count);
  // Norms Q and K of rows [begin, end), in place.
  void NormHeads(const AttentionOp& attention, Buffer& qkv, std::int64_t begin, std::int64_t end);
  // Norms, rotates and stores rows [begin, end).
  void RopeAndStoreRows(const AttentionOp& attention, Buffer& qkv, std::int64_t begin,
                        std::int64_t end);
  // Norms one head with its own weight.
  void NormOwnHead(const NormOp& norm, int head, int dim, float* x) const;
  // What follows the product of the head in panels [begin, end).
  void FinishLogits(const HeadWeights& head, const Product& product, std::int64_t begin,
                    std::int64_t end);
  // Whether this rank gets the full row of a request.
  bool GetsFullRow(std::int64_t request) const;
  // Reduces the rows of one tile of logits, or hands them over.
  void TakeTile(const HeadWeights& head, const float* logits, std::size_t first, int rows);

  bool Quantizes(const kernels::MatrixView& matrix) const {
    return options_.recipe != Recipe::kFp32 &&
           (kernels::HasIntegerProduct(matrix.kind) || kernels::HasInt8Product(matrix.kind));
  }
  // The product of rows of the step with a piece.
  Product ProductOf(const Piece& piece, const Buffer& x, Buffer* out) const;
  // Makes the parts follow their checkpoint's activations, if the recipe is kFast. With `equal`,
  // which is for parts that become one matrix, they do if their encodings are equal then.
  void FollowActivations(std::vector<MatrixPart>& parts, bool equal) const;
  // Quantises the rows of a product's x by the splits of its matrix, if it wants that.
  void Quantize(const Product& product);
  kernels::QuantizeArgs QuantizeFor(const Product& product);
  kernels::QuantizedRows QuantizedOf(const Product& product);
  // Panels [begin, end) of the product; on any thread.
  void MatMul(const Product& product, std::int64_t begin, std::int64_t end);
  // The same with x quantised elsewhere.
  void MatMul(const Product& product, const kernels::QuantizedRows& x, std::int64_t begin,
              std::int64_t end);
  // Runs `fn` over rows in parallel where this is worth a hand-over, else on this thread.
  void ForRows(int rows, std::int64_t row_elements,
               absl::FunctionRef<void(std::int64_t, std::int64_t)> fn);

  const BackendOptions options_;
  const std::int64_t scratch_rows_;  // of the largest product, of a step or of logits
  const kernels::Ops& ops_;
  ThreadPool pool_;

  WeightPacker packer_;
  std::vector<Buffer> buffers_;
  std::vector<std::vector<float>> vectors_;
  std::vector<std::unique_ptr<kernels::RopeTable>> ropes_;
  std::vector<EmbeddingSource> embeddings_;
  std::vector<Matrix> matrices_;
  std::vector<HeadMatrices> head_matrices_;
  std::vector<Projection> projections_;
  std::vector<Experts> experts_;
  std::vector<HeadWeights> heads_;
  KvCache cache_;
  std::unique_ptr<TierStore> tiers_;

  // Of the step in work.
  StepInputs inputs_;
  RowReceiver* receiver_ = nullptr;
  std::vector<std::int32_t> row_sequences_;  // [rows] sequence of each row
  std::vector<AttentionItem> attention_items_;
  OpenRuns open_runs_;
  std::deque<std::vector<RowPartial>> partials_;  // of steps that are not finished
  Routing routing_;

  // The sizes of what follows, as the matrices need it.
  std::int64_t widest_ = 0, most_splits_ = 1;
  AlignedBuffer<std::int16_t> quantized_;  // [scratch_rows_, widest_]
  AlignedBuffer<float> group_sums_;        // [scratch_rows_, widest_ / kSumSpan]
  AlignedBuffer<float> scales_;            // [scratch_rows_, most_splits_]
  AlignedBuffer<float> head_input_;        // [kLogitRows, hidden]
  AlignedBuffer<float> logits_;            // [kLogitRows, vocabulary], where one rank has them all
};

// The backend that serves when nobody names another.
std::unique_ptr<Backend> MakeCpuBackend(const BackendOptions& options);

}  // namespace flotilla::worker
