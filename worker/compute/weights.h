// Weights: the tensors of a rank's shard of the model in the arrangement that the
// kernels read. They are made once at start from the mapped file and then immutable.
//
// Q, K and V are one matrix with one product, and so are gate and up. Matrices keep the file's
// quantisation exactly. What the packed formats do not cover is stored as the exact fp32 values:
// other block types, and fused matrices whose parts have different types. The two row-parallel
// matrices are cut into the model's splits. The table of token vectors stays in the file, which
// all ranks of a host share.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/packed_matrix.h"
#include "model/checkpoint.h"
#include "model/spec.h"
#include "worker/compute/thread_pool.h"
#include "worker/core/sharding.h"

namespace flotilla::worker {

// The part of a model that one rank computes, in the model's own units.
struct ModelShard {
  IndexRange layers;
  IndexRange kv_heads;  // and the query heads of each
  IndexRange ffn;       // columns; whole splits
  IndexRange vocab;     // tokens whose logits it computes; whole chunks; may be empty

  bool operator==(const ModelShard&) const = default;
};

// WholeModel returns the shard that is the whole model; ShardModel returns the shards of a
// group's ranks. INVALID_ARGUMENT as for PlanShards.
ModelShard WholeModel(const model::ModelSpec& spec);
absl::StatusOr<std::vector<ModelShard>> ShardModel(const model::Checkpoint& file,
                                                   const model::ModelSpec& spec,
                                                   ParallelShape shape, ShardBalance balance);

// A product over some of the splits: one complete subtree of the split tree, or the
// whole tree.
struct SplitProduct {
  kernels::PackedMatrix matrix;
  std::int64_t first_k = 0;  // of the rank's own columns
  int first_split = 0;       // of the rank's own splits
};

struct LayerWeights {
  std::vector<float> attention_norm;           // [hidden]
  kernels::PackedMatrix qkv;                   // hidden -> (heads + 2 kv_heads) * head_dim
  std::vector<float> query_norm;               // [head_dim]; empty: heads are not normed
  std::vector<float> key_norm;                 // [head_dim]
  std::vector<SplitProduct> attention_output;  // heads * head_dim -> hidden; splits: KV heads
  std::vector<float> ffn_norm;                 // [hidden]
  kernels::PackedMatrix gate_up;               // hidden -> 2 ffn: gate, then up
  std::vector<SplitProduct> down;              // ffn -> hidden; splits: those of the FFN
};

// All weights of one rank. In LayerWeights, heads and ffn mean those of the shard.
struct Weights {
  ModelShard shard;
  model::Tensor tokens{};            // [vocab] rows of [hidden], in the file
  std::vector<LayerWeights> layers;  // the shard's
  std::vector<float> output_norm;    // [hidden]
  kernels::PackedMatrix head;        // hidden -> the shard's tokens; empty if it has none
  uint64_t content_hash = 0;         // of the file's metadata and tensors
  int64_t bytes = 0;                 // of all matrices
};

// Returns the subtrees of a row-parallel product with `all` splits that the owner of `splits` adds
// by itself. The owner of all splits adds the whole range.
std::vector<IndexRange> SubtreesOf(IndexRange splits, std::uint32_t all);
// The splits behind a shard's heads and FFN columns.
IndexRange AttentionSplits(const ModelShard& shard);
IndexRange FfnSplits(const model::ModelSpec& spec, const ModelShard& shard);

// Packs the shard's tensors with the threads of `pool` (the caller's is one of them).
// The file outlives the weights. `spec` is what LoadSpec returned for this file, so
// tensors are present and have the right dimensions. Unimplemented: the kernels do not
// know the head size. ResourceExhausted: there is not
// enough memory.
absl::StatusOr<Weights> LoadWeights(const model::Checkpoint& file, const model::ModelSpec& spec,
                                    const ModelShard& shard, ThreadPool& pool);

}  // namespace flotilla::worker
