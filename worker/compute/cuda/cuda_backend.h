// CudaBackend: the Backend of NVIDIA GPUs, over a Device (worker/device/device.h), which tests
// simulate.
//
// Operations enqueue kernels (kernels/cuda/) on the device's queue for computing, for all rows of
// the step at once, and return. What a step needs of the host lies in one block of pinned memory of
// its own, and goes over in one copy. Only Finish waits; with several ranks also the operations
// that exchange activations or full rows of logits through the host (DeviceExchange, Exchange).
//
// It computes dense models of the Llama and Qwen3 kinds; docs/gpu.md lists what it lacks, which
// Check, AddMatrix and CreateKv refuse by name. Token vectors are decoded on the host, from the
// file.
//
// The rows of logits stay on the device, where each is reduced to a RowPartial. Only rows that need
// all logits, or that a request edits, come to the host.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/ops.h"
#include "worker/compute/backend.h"
#include "worker/compute/cuda/arena.h"
#include "worker/compute/cuda/device_exchange.h"
#include "worker/compute/cuda/device_kv.h"
#include "worker/compute/cuda/device_weights.h"
#include "worker/compute/host/thread_pool.h"
#include "worker/compute/host/tier_store.h"
#include "worker/core/split_layout.h"
#include "worker/device/device.h"

namespace flotilla::worker {

class CudaBackend final : public Backend {
 public:
  CudaBackend(const BackendOptions& options, std::unique_ptr<Device> device);
  ~CudaBackend() override;

  // As Check, without a GPU.
  static absl::Status CheckModel(const model::ModelSpec& spec);
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
  void AddAttention(const AttentionOp& attention) override;
  absl::Status Load() override;
  // Moves activations through `exchange`, which is over device(), instead of through the host.
  // Called once, after Load and before the first step. RESOURCE_EXHAUSTED: it has no memory.
  absl::Status UseExchange(std::unique_ptr<DeviceExchange> exchange);
  Device& device() { return *device_; }

  std::string memory_id() const override { return device_->id(); }
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
  void Multiply(BufferHandle x, MatrixHandle matrix, BufferHandle out) override;
  void GateUp(BufferHandle x, MatrixHandle gate_up, const FfnOp& ffn, BufferHandle out) override;
  void AddProjection(BufferHandle x, ProjectionHandle projection, BufferHandle residual) override;
  void RopeAndStore(const AttentionOp& attention, BufferHandle qkv) override;
  void Attend(const AttentionOp& attention, BufferHandle qkv, BufferHandle out) override;
  void Head(BufferHandle x, const NormOp& norm, HeadHandle head) override;
  absl::StatusOr<std::vector<RowPartial>> Finish() override;

  // ---- Operations of models that Check refuses.
  void Prepare(BufferHandle, MatrixHandle, BufferHandle) override { Refuse("Prepare"); }
  void Project(BufferHandle, ProjectionHandle, BufferHandle) override { Refuse("Project"); }
  void RouteRows(BufferHandle, const std::optional<NormOp>&, ExpertsHandle, BufferHandle) override {
    Refuse("RouteRows");
  }
  void GateUpExperts(BufferHandle, ExpertsHandle, const FfnOp&, BufferHandle) override {
    Refuse("GateUpExperts");
  }
  void AddMixture(BufferHandle, ExpertsHandle, BufferHandle) override { Refuse("AddMixture"); }
  void Mix(BufferHandle, ExpertsHandle, BufferHandle) override { Refuse("Mix"); }
  void ScaleShared(ExpertsHandle, BufferHandle) override { Refuse("ScaleShared"); }
  void AddScaled(BufferHandle, float, BufferHandle) override { Refuse("AddScaled"); }
  void Absorb(const LatentOp&, BufferHandle, BufferHandle, BufferHandle) override {
    Refuse("Absorb");
  }
  void MultiplyHeads(BufferHandle, HeadMatricesHandle, const std::vector<std::int32_t>&,
                     BufferHandle) override {
    Refuse("MultiplyHeads");
  }

  void OnHost(std::int64_t count, absl::FunctionRef<void(std::int64_t)> fn) override {
    pool_.ParallelItems(count, fn);
  }
  std::int64_t weight_bytes() const override { return weights_.bytes(); }
  std::int64_t buffer_bytes() const override { return buffer_bytes_; }

 private:
  // Segments of one launch of attention, for which there is scratch. It is enough for one row of
  // 1,048,576 positions.
  static constexpr int kMostSegments = 4096;

  struct Buffer {
    std::int64_t width = 0;
    Device::Memory memory;  // [max_rows, width] fp32

    float* data() const { return memory.as<float>(); }
  };
  struct Rope {
    int dim = 0;
    Device::Memory table;  // [max_positions, dim] fp32
  };
  // Outputs of one format, from `column` of their matrix on.
  struct Piece {
    const kernels::cuda::Matrix* matrix;
    std::int64_t column;
  };
  struct Matrix {
    std::vector<Piece> pieces;
    std::int64_t columns = 0;
    Device::Memory bias;  // [columns]; empty: none
  };
  // A product over some of the splits: one complete subtree of the split tree, or the whole tree.
  struct SplitProduct {
    const kernels::cuda::Matrix* matrix;
    std::int64_t first_k;  // of the rank's own columns
    int first_split;       // of the rank's own splits
  };
  struct Projection {
    std::int64_t columns = 0;
    std::vector<SplitProduct> products;
    SumTree tree;         // over all ranks' products; empty if the rank is alone
    Device::Memory bias;  // [columns]; empty: none
  };
  struct HeadWeights {
    const kernels::cuda::Matrix* matrix;  // null: the rank has no chunk of the vocabulary
    VocabularyShard shard;
    std::int64_t vocabulary;
    std::int64_t size;  // entries of the shard
  };
  // out (+)= x * matrix. Where the recipe quantises, x means the rows quantised for it.
  struct Product {
    const kernels::cuda::Matrix& matrix;
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

  // What a step has on the device of its inputs.
  struct StepData {
    const std::int32_t* positions = nullptr;  // [rows]
    const std::int32_t* sequences = nullptr;  // [rows]
    const std::int64_t* begins = nullptr;     // [sequences, groups]
    const std::int32_t* blocks = nullptr;
    const std::int32_t* first_segments = nullptr;  // [rows + 1]
    const std::int32_t* segment_rows = nullptr;    // [segments]
    const std::int32_t* request_rows = nullptr;    // [requests]
    const kernels::cuda::Gumbel* draws = nullptr;  // [requests]
    const std::int32_t* known = nullptr;           // [requests] a token of this rank's shard
  };
  // What the requests of a tile are reduced to; arrays on the device, then on the host.
  struct TileResults {
    int first = 0, rows = 0;  // requests
    int top = 0;              // of the rows' lists
    std::int64_t stats = 0;   // where they begin in the results of the step: [subtrees, rows]
    std::int64_t best = 0;    // [rows, top]
    std::int64_t greedy = 0, gumbel = 0;        // [rows] winners
    std::int64_t gumbel_logits = 0, known = 0;  // [rows] logits
  };
  struct Step {
    Step(Device& device) : pinned(device, true), memory(device, false) {}

    StepInputs inputs;
    RowReceiver* receiver = nullptr;
    Arena pinned, memory;
    StepData data;
    std::vector<std::int32_t> first_segments;  // as on the device
    const HeadWeights* head = nullptr;
    std::vector<TileResults> tiles;
    std::byte* results = nullptr;           // on the host
    std::vector<const float*> host_logits;  // of each request: its row on the host; null: none
    Device::Event done = 0;
  };

  bool alone() const { return options_.tensor_ranks == 1; }
  int rows() const { return step_->inputs.rows(); }
  const Buffer& At(BufferHandle handle) const { return buffers_[handle.index()]; }
  const float* At(VectorHandle handle) const { return vectors_[handle.index()].as<float>(); }
  bool Quantizes(const kernels::cuda::Matrix& matrix) const {
    return options_.recipe == Recipe::kAccurate && kernels::cuda::HasIntegerProduct(matrix.kind);
  }

  // Memory of the device with these values; empty where there is none, and then Load fails.
  template <typename T>
  Device::Memory Put(const std::vector<T>& values) {
    return values.empty() ? Device::Memory() : PutBytes(values.data(), values.size() * sizeof(T));
  }
  Device::Memory PutBytes(const void* values, std::size_t bytes);
  // Memory of `bytes` zeros.
  Device::Memory Zeros(std::int64_t bytes);

  // The memory of the device that the largest step takes from its arena.
  std::size_t MostStepBytes() const;
  // Makes the steps that may be in flight, with this memory.
  absl::Status MakeSteps();

  // The first error stays. Every later Finish returns it.
  void Fail(const absl::Status& status);
  void Refuse(std::string_view operation);

  // Enqueues ops for computing.
  template <class Args>
  void Run(int (*kernels::cuda::Ops::*op)(const Args&, kernels::cuda::Stream), const Args& args);
  // Enqueues a download of floats to pinned memory, and waits for it. False: the device has failed,
  // or there is no memory.
  bool Fetch(const float* from, std::int64_t count, float* to);

  void SendInputs();
  void Quantize(const Product& product);
  kernels::cuda::QuantizedRows QuantizedOf(const Product& product) const;
  void MatMul(const Product& product);
  void MultiplyPieces(const Matrix& weights, const Buffer& x, const Buffer& out);
  void AddBias(const Device::Memory& bias, std::int64_t columns, const Buffer& out);
  absl::Status ReserveExchange();
  void SumParts(const Projection& projection, const float* sums, const Buffer& out);
  void NormHeads(const NormOp& norm, int size, int stride, int heads, const Buffer& qkv, float* x);
  kernels::cuda::KvView KvOf(const AttentionOp& attention) const;
  void ReduceTile(const HeadWeights& head, const TileResults& tile, std::byte* results);
  // The full rows of a tile to the host and to the other ranks.
  void ShareTile(const HeadWeights& head, const TileResults& tile);
  bool GetsFullRow(std::int64_t request) const;
  RowPartial PartialOf(const Step& step, const TileResults& tile, int row) const;

  const BackendOptions options_;
  const std::int64_t scratch_rows_;  // of the largest product, of a step or of logits
  const std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceExchange> exchange_;  // null: the rank is alone
  const kernels::Ops& host_ops_;
  ThreadPool pool_;
  absl::Status failure_;

  DeviceWeights weights_;
  std::vector<Buffer> buffers_;
  std::vector<Device::Memory> vectors_;
  std::vector<Rope> ropes_;
  std::vector<EmbeddingSource> embeddings_;
  std::vector<Matrix> matrices_;
  std::vector<Projection> projections_;
  std::vector<HeadWeights> heads_;
  std::int64_t buffer_bytes_ = 0;
  std::optional<DeviceKv> kv_;
  std::unique_ptr<TierStore> tiers_;

  // The sizes of what follows, as the model needs it.
  std::int64_t widest_ = 0, most_splits_ = 1, widest_projection_ = 0, most_products_ = 1;
  std::int64_t attention_width_ = 0;  // floats of a row's state in one segment
  Device::Memory quantized_;          // [scratch_rows_, widest_] int16
  Device::Memory group_sums_;         // [scratch_rows_, widest_ / kSumSpan] fp32
  Device::Memory scales_;             // [scratch_rows_, most_splits_] fp32
  Device::Memory sums_;               // [products, max_rows, columns] fp32, with several ranks
  std::int64_t attention_segments_ = 0;
  Device::Memory attention_;   // [attention_segments_, attention_width_] fp32
  Device::Memory head_input_;  // [kLogitRows, hidden] fp32
  Device::Memory logits_;      // [kLogitRows, entries of the shard] fp32
  std::vector<std::vector<std::int32_t>> head_places_;  // that are on the device
  std::vector<Device::Memory> device_places_;

  std::deque<std::unique_ptr<Step>> steps_;         // that are not finished, oldest first
  std::vector<std::unique_ptr<Step>> spare_steps_;  // whose memory is kept
  Step* step_ = nullptr;                            // the newest
};

}  // namespace flotilla::worker
