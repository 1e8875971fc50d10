// Forward: one pass of the decoder over a flat, unpadded batch that mixes
// prefill chunks and decodes, from token ids to logits.
//
// In a group with several ranks, each rank computes its shard and exchanges parts with
// the others through the Communicator. The result has the same bits as that of one rank,
// because every rank adds the sums over splits in the tree of the whole model.
//
// The executor owns the Forward and calls it from its thread; the pool's threads do the
// work in phases. The result of a row depends on its sequence alone: the ops fix the
// order of every reduction (kernels/ops.h), and this class only cuts rows, panels and
// heads into ranges. All K and V of a layer are written before any attention of that
// layer reads. Buffers are allocated once, for `max_rows` rows; a pass allocates nothing
// that grows with rows or context.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/rt/aligned_buffer.h"
#include "kernels/ops.h"
#include "kernels/rope_table.h"
#include "model/spec.h"
#include "worker/comm/communicator.h"
#include "worker/compute/kv_cache.h"
#include "worker/compute/thread_pool.h"
#include "worker/compute/weights.h"
#include "worker/core/group_state.h"

namespace flotilla::worker {

// How matrix products round.
enum class Recipe : std::uint8_t {
  kAccurate,  // 16-bit activations, one scale per row and split; exact weights
  kFp32,      // fp32 activations: the reference
};

std::string_view RecipeName(Recipe recipe);

// The version of the numeric recipes. A change of any answer's bits needs another version:
// tests/data/answer_hashes.txt has the version beside hashes of bits, and answer_guard_test fails
// if one of them changes alone. 2: RMSNorm sums in 64 lanes.
inline constexpr int kRecipeVersion = 2;

class Forward {
 public:
  // How many rows of logits exist at a time. This bounds their memory (12 MiB for 96 Ki
  // tokens), and a batch of 32 decodes still reads the head once.
  static constexpr int kLogitRows = 32;

  struct Options {
    Recipe recipe = Recipe::kAccurate;
    int max_rows = 512;     // of one batch
    int max_positions = 0;  // of one sequence
  };

  // The sizes of what ranks send each other in a pass. `shards` are those of all ranks.
  static Communicator::Limits ExchangeLimits(const Options& options, const model::ModelSpec& spec,
                                             absl::Span<const ModelShard> shards,
                                             ParallelShape shape);

  // All referenced objects outlive the Forward. `weights` and `cache` belong to this
  // rank's shard. `shards` are those of all ranks of `communicator`. With one rank,
  // `communicator` is null and `shards` is empty.
  Forward(const Options& options, const model::ModelSpec& spec, const Weights& weights,
          const kernels::Ops& ops, KvCache& cache, ThreadPool& pool,
          Communicator* communicator = nullptr, absl::Span<const ModelShard> shards = {});

  // Called once per wanted row, on any compute thread, several at a time. `request` is
  // the index into `logit_rows`. `logits` are fp32: [vocab], or those of this rank's shard
  // of the vocabulary. Logits exist on the last stage only.
  using LogitSink = absl::FunctionRef<void(int request, absl::Span<const float> logits)>;
  // Whether the row of a request is wanted in full.
  using WantsFullRow = absl::FunctionRef<bool(int request)>;

  // Writes K and V of all rows of `batch` (at most max_rows, inside the tables). The last
  // stage hands the logits of rows `logit_rows` (ascending) to `sink`. A row that is wanted
  // in full goes whole to one rank (see HasLogits); of any other row each rank gets its
  // shard. All ranks make the same call. `full_row` does not matter to a rank that has the
  // whole vocabulary.
  void Run(const Batch& batch, absl::Span<const int32_t> logit_rows, WantsFullRow full_row,
           LogitSink sink);
  // Runs only the first `layers` layers; the head follows the last of them. Every rank
  // gets all rows, whole. Works with one stage only.
  void RunFirst(int layers, const Batch& batch, absl::Span<const int32_t> logit_rows,
                LogitSink sink);
  bool HasLogits(int request) const;

  // Bytes of all buffers.
  int64_t buffer_bytes() const;

 private:
  // Part of one sequence's queries against one KV head.
  struct AttentionItem {
    int item;  // of the batch
    int kv_head;
    int row;  // first row, within the batch item
    int rows;
  };
  // How the sums of a row-parallel product are added over all ranks. Part i says which sum
  // a load of index i reads: the rank, and the place among that rank's parts.
  struct SumTree {
    struct Part {
      int rank, place;
    };
    TreeProgram program;
    std::vector<Part> parts;
  };
  // out (+)= x * matrix. Where the recipe quantises, x means the rows quantised last.
  struct Product {
    const kernels::MatrixView& matrix;
    const float* x;  // [rows, matrix.k]
    int64_t x_stride;
    float* out;  // [rows, matrix.columns]
    int64_t out_stride;
    bool accumulate = false;
    int rows = 0;
    // Where the quantised rows of x begin.
    int64_t first_k = 0;
    int64_t first_split = 0;
  };

  static SumTree MakeSumTree(absl::Span<const IndexRange> splits, uint32_t all);
  bool alone() const { return trees_.empty(); }
  void PlaceRows(const Batch& batch);
  void Embed(const Batch& batch);
  // Runs the batch through the first `count` layers of this rank's stage.
  void Layers(const Batch& batch, int count);
  void PlanAttention(const Batch& batch);
  void Layer(const Batch& batch, int index);
  // hidden_ += x * the row-parallel matrix of all ranks.
  void AddRowParallel(const std::vector<SplitProduct>& products, const float* x, int64_t x_stride,
                      int tree);
  // Adds what all ranks have exchanged to rows [begin, end) of hidden_.
  void AddParts(const SumTree& tree, absl::Span<const float* const> parts, int64_t begin,
                int64_t end);
  // Norms each head of Q and K of rows [begin, end), in place.
  void NormHeads(int layer, int64_t begin, int64_t end);
  // Norms if the model does, rotates Q and K of rows [begin, end), and writes their K and V.
  void RopeAndStore(const Batch& batch, int layer, int64_t begin, int64_t end);
  void Attention(const Batch& batch, int layer);
  // silu(gate) * up for panels [begin, end) of the FFN's width, into gate's place.
  void GateUp(const kernels::MatrixView& gate_up, int64_t begin, int64_t end);
  // Hands out logits as Run and RunFirst say; `to_all`: every rank gets all rows, whole.
  void Logits(absl::Span<const int32_t> logit_rows, bool to_all, WantsFullRow full_row,
              LogitSink sink);

  bool Quantizes(const kernels::MatrixView& matrix) const {
    return recipe_ == Recipe::kAccurate && kernels::HasIntegerProduct(matrix.kind);
  }
  // normed_ = RMSNorm(hidden_) * weight, quantised if `matrix` wants it.
  void NormAndQuantize(const std::vector<float>& weight, float eps,
                       const kernels::MatrixView& matrix);
  // Quantises the rows of a product's x by the splits of its matrix, if it wants that.
  void Quantize(const Product& product);
  kernels::QuantizeArgs QuantizeFor(const Product& product);
  kernels::QuantizedRows QuantizedOf(const Product& product);
  // Panels [begin, end) of the product; on any thread.
  void MatMul(const Product& product, int64_t begin, int64_t end);
  // Runs `fn` over rows in parallel where this is worth a hand-over, else on this thread.
  void ForRows(int rows, int64_t row_elements, absl::FunctionRef<void(int64_t, int64_t)> fn);

  const Recipe recipe_;
  const model::ModelSpec& spec_;
  const Weights& weights_;
  const kernels::Ops& ops_;
  KvCache& cache_;
  ThreadPool& pool_;
  Communicator* const communicator_;  // null: one rank
  const kernels::RopeTable rope_;
  const int kv_heads_;     // of this rank, as all below
  const int query_heads_;  // kv_heads_ * group
  const int query_width_;  // query_heads_ * head_dim
  const int kv_width_;     // kv_heads_ * head_dim
  const int qkv_width_;    // query_width_ + 2 kv_width_
  const int64_t ffn_;
  const float attention_scale_;

  // The trees of attention output and of FFN down. Empty where one rank has whole products.
  enum { kAttentionTree, kFfnTree };
  std::vector<SumTree> trees_;

  int rows_ = 0;                    // of the batch in work
  std::vector<int32_t> positions_;  // [rows]
  std::vector<int32_t> row_items_;  // [rows] batch item of each row
  std::vector<AttentionItem> attention_items_;
  std::vector<kernels::MatrixView> views_;  // of the row-parallel product in work

  AlignedBuffer<float> hidden_;       // [max_rows, hidden] residual stream
  AlignedBuffer<float> normed_;       // [max_rows, hidden]
  AlignedBuffer<float> qkv_;          // [max_rows, qkv_width_]
  AlignedBuffer<float> attended_;     // [max_rows, query_width_]
  AlignedBuffer<float> gate_up_;      // [max_rows, 2 ffn_]
  AlignedBuffer<float> logits_;       // [kLogitRows, vocab], where one rank has them all
  AlignedBuffer<int16_t> quantized_;  // [max_rows, widest k]
  AlignedBuffer<float> block_sums_;   // [max_rows, widest k / 32]
  AlignedBuffer<float> scales_;       // [max_rows, most splits]
};

}  // namespace flotilla::worker
