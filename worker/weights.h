// Weights: the model's tensors in the arrangement that the kernels read, made
// once at start from the mapped file and then immutable.
//
// Q, K and V are one matrix, so are gate and up: one product each. Matrices keep
// the file's quantisation exactly; what the packed formats do not cover (other
// block types, parts of a fused matrix that differ) is stored as the exact fp32
// values. The two row-parallel matrices are cut into the model's slots.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/packed_matrix.h"
#include "model/config.h"
#include "model/gguf.h"
#include "worker/thread_pool.h"

namespace flotilla {

struct LayerWeights {
  std::vector<float> attention_norm;       // [hidden]
  kernels::PackedMatrix qkv;               // hidden -> (heads + 2 kv_heads) * head_dim
  kernels::PackedMatrix attention_output;  // heads * head_dim -> hidden; slots: KV heads
  std::vector<float> ffn_norm;             // [hidden]
  kernels::PackedMatrix gate_up;           // hidden -> 2 ffn: gate, then up
  kernels::PackedMatrix down;              // ffn -> hidden; slots: config.ffn_slot
};

struct Weights {
  kernels::PackedMatrix embedding;  // a token's column is its row of the table
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;               // [hidden]
  std::optional<kernels::PackedMatrix> output;  // none: tied to the embedding
  uint64_t content_hash = 0;                    // of the file's metadata and tensors
  int64_t bytes = 0;                            // of all matrices

  const kernels::PackedMatrix& head() const { return output ? *output : embedding; }
};

// Packs all tensors with the threads of `pool` (the caller's is one of them).
// The file is not needed afterwards. `config` is what LoadConfig said of this
// file, so tensors are present and have the right dimensions. Unimplemented for
// a layout that kernels do not know (half-split or partial RoPE, head_dim),
// ResourceExhausted when memory cannot be had.
absl::StatusOr<Weights> LoadWeights(const GgufFile& file, const ModelConfig& config,
                                    ThreadPool& pool);

}  // namespace flotilla
