// What a model is: values that say which parts make up its decoder, with which sizes. A spec comes
// from LoadSpec; the decoder, the loader of weights and the planner of shards read it, and know
// no architecture by name.
//
// The canonical form, into which every architecture is brought at load: rotated pairs of a head are
// (0, 1), (2, 3) ...; q, k, v, gate and up are separate matrices; a norm's weight is what it
// multiplies by; scaling of RoPE is resolved to frequencies.
#pragma once

#include <cstdint>
#include <optional>
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
  uint32_t kv_group = 0;    // index into ModelSpec::kv_groups

  bool operator==(const AttentionSpec&) const = default;
};

// The layers whose K and V share block tables.
struct KvGroupSpec {
  uint32_t window = 0;  // each position sees so many positions up to itself; 0: all of them
};

// down(silu(gate(x)) * up(x)).
struct FfnSpec {
  uint32_t width = 0;  // multiple of 32
  uint32_t split = kFfnSplitWidth;

  bool operator==(const FfnSpec&) const = default;
};

// A mixture of experts: each row goes through the `chosen` of `experts` FFNs that a router prefers.
struct MoeSpec {
  uint32_t experts = 0;
  uint32_t chosen = 0;
  FfnSpec expert;

  bool operator==(const MoeSpec&) const = default;
};

// How the parts of a layer follow each other.
enum class Wiring : uint8_t {
  kSequential,  // x += attention(x); x += ffn(x)
  kParallel,    // x += attention(x) + ffn(x)
};

// A layer: attention, and FFN or mixture of experts. Around each of the two are norms, and its
// result is multiplied by the residual factor before it is added.
struct LayerSpec {
  float norm_eps = 0;
  bool norms_before = true;
  bool norms_after = false;
  Wiring wiring = Wiring::kSequential;
  float residual_factor = 1;
  AttentionSpec attention;
  FfnSpec ffn;
  std::optional<MoeSpec> moe;  // in place of ffn

  bool operator==(const LayerSpec&) const = default;
};

struct ModelSpec {
  std::string architecture;  // e.g. "llama"
  std::string name;          // for people; may be empty
  uint32_t hidden = 0;
  uint32_t vocab = 0;
  uint32_t context_length = 0;  // positions the model was trained for
  std::vector<RopeSpec> ropes;
  std::vector<KvGroupSpec> kv_groups{{}};
  std::vector<LayerSpec> layers;  // at least one
  float output_norm_eps = 0;
  bool tied_embedding = false;     // the head is the table of token vectors
  std::vector<TensorRow> tensors;  // where each weight is in the file

  // The parts of the first layer. Decoder::Check says whether all layers are like it.
  const AttentionSpec& attention() const { return layers.front().attention; }
  const FfnSpec& ffn() const { return layers.front().ffn; }

  // Splits of the row-parallel products, which fix the order of their sums: attention output is
  // summed by KV head group, FFN down by runs of FfnSpec::split columns, the last of which may be
  // short.
  uint32_t attention_splits() const { return attention().kv_heads; }
  uint32_t ffn_splits() const { return (ffn().width + ffn().split - 1) / ffn().split; }
};

}  // namespace flotilla::model
