// What a model is: values that say which parts make up its decoder, with which sizes. A spec comes
// from LoadSpec; the decoder, the loader of weights and the planner of shards read it, and know
// no architecture by name.
//
// The canonical form, into which every architecture is brought at load: rotated pairs of a head are
// (0, 1), (2, 3) ...; q, k, v, gate and up are separate matrices; a norm's weight is what it
// multiplies by; scaling of RoPE is resolved to frequencies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/tensor_table.h"

namespace flotilla::model {

// FFN rows (columns of ffn_down) that make one partial sum of the recipe.
inline constexpr uint32_t kFfnSplitWidth = 128;

// Rotary embedding over a whole head: pair i of a head turns by position * frequencies[i].
struct RopeSpec {
  std::vector<float> frequencies;
};

// Grouped-query attention over all earlier positions. heads / kv_heads query heads share a KV head.
struct AttentionSpec {
  uint32_t heads = 0;  // a multiple of kv_heads
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;    // of queries, keys and values alike
  bool head_norms = false;  // RMSNorm of each head's q and k, before RoPE
  float scale = 0;          // of the scores
  uint32_t rope = 0;        // index into ModelSpec::ropes
};

// down(silu(gate(x)) * up(x)).
struct FfnSpec {
  uint32_t width = 0;  // multiple of 32
  uint32_t split = kFfnSplitWidth;
};

// x += attention(norm(x)); x += ffn(norm(x)).
struct LayerSpec {
  float norm_eps = 0;
  AttentionSpec attention;
  FfnSpec ffn;
};

struct ModelSpec {
  std::string architecture;  // e.g. "llama"
  std::string name;          // for people; may be empty
  uint32_t hidden = 0;
  uint32_t vocab = 0;
  uint32_t context_length = 0;  // positions the model was trained for
  std::vector<RopeSpec> ropes;
  std::vector<LayerSpec> layers;  // at least one
  float output_norm_eps = 0;
  bool tied_embedding = false;     // the head is the table of token vectors
  std::vector<TensorRow> tensors;  // where each weight is in the file

  // The parts of the first layer, whose sizes all layers have.
  const AttentionSpec& attention() const { return layers.front().attention; }
  const FfnSpec& ffn() const { return layers.front().ffn; }

  // Splits of the row-parallel products, which fix the order of their sums: attention output is
  // summed by KV head group, FFN down by runs of FfnSpec::split columns, the last of which may be
  // short.
  uint32_t attention_splits() const { return attention().kv_heads; }
  uint32_t ffn_splits() const { return (ffn().width + ffn().split - 1) / ffn().split; }
};

}  // namespace flotilla::model
