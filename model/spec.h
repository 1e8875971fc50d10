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

#include "common/types/activation.h"
#include "common/types/expert_scores.h"
#include "model/checkpoint.h"
#include "model/tensor_table.h"

namespace flotilla::model {

enum class NormKind : uint8_t {
  kRms,    // of the square mean
  kLayer,  // of mean and variance; may have a bias
};

struct NormSpec {
  NormKind kind = NormKind::kRms;
  float eps = 0;

  bool operator==(const NormSpec&) const = default;
};

// Rotary embedding of the first 2 * frequencies.size() elements of a head: pair i turns by
// position * frequencies[i], and is then multiplied by `magnitude`.
struct RopeSpec {
  std::vector<float> frequencies;
  float magnitude = 1;
};

// Norms of q and k before RoPE.
enum class HeadNorms : uint8_t {
  kNone,
  kShared,    // of each head, with one weight for all
  kOwn,       // LayerNorm of each head, with its own weight
  kAllHeads,  // of all heads together
};

// Multi-head latent attention (arXiv 2405.04434): of a token's K and V only a latent is kept, and
// one part of K that has a position, which all heads share. A matrix of each head makes its K and V
// of the latent; here the decoder multiplies queries and results by it instead.
struct LatentSpec {
  uint32_t query_rank = 0;  // queries are made of so many numbers of a token; 0: of its residual
  uint32_t rank = 0;        // of the latent, a multiple of 16
  uint32_t nope_dim = 0;    // of a query head: the first elements, without a position
  uint32_t rope_dim = 0;    // the last elements, all of which are rotated; a multiple of 16
  NormSpec norm;            // of the latent, and of what queries are made of

  bool operator==(const LatentSpec&) const = default;
};

// Grouped-query attention, or with a latent one KV head. heads / kv_heads query heads share a KV
// head.
struct AttentionSpec {
  uint32_t heads = 0;  // a multiple of kv_heads
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;   // of queries; without a latent also of keys
  uint32_t value_dim = 0;  // of values, and so of a head's result, which the output product reads
  HeadNorms head_norms = HeadNorms::kNone;
  NormSpec head_norm;
  float scale = 0;               // of the scores
  std::optional<uint32_t> rope;  // index into ModelSpec::ropes; none: no positions in q and k
  uint32_t window = 0;           // each position sees so many positions up to itself; 0: all
  float softcap = 0;             // scores become softcap * tanh(score / softcap); 0: they do not
  bool alibi = false;            // scores get a slope by distance (arXiv 2108.12409)
  bool sinks = false;            // each head has one more score, without a value
  uint32_t kv_group = 0;         // index into ModelSpec::kv_groups
  std::optional<LatentSpec> latent;

  // Of a token's K: with a latent the same for all heads, of which the latent is the first part.
  uint32_t key_dim() const { return latent ? latent->rank + latent->rope_dim : head_dim; }

  // The splits of the output product: one for each KV head, or for each query head where all
  // share one KV head, which every rank then has.
  bool splits_queries() const { return kv_heads == 1; }
  uint32_t splits() const { return splits_queries() ? heads : kv_heads; }

  bool operator==(const AttentionSpec&) const = default;
};

// The slope of a head of ALiBi, which is number `head` of `heads`.
float AlibiSlope(uint32_t head, uint32_t heads);

// The layers whose K and V share block tables (kv_groups.h).
struct KvGroupSpec {
  uint32_t window = 0;  // each position sees so many positions up to itself; 0: all of them

  bool operator==(const KvGroupSpec&) const = default;
};

// down(activation(gate(x)) * up(x)), or without a gate down(activation(up(x))).
struct FfnSpec {
  uint32_t width = 0;
  Activation activation = Activation::kSilu;
  bool gated = true;

  // Columns of a split of the down product: 128, fewer while there would be less than 4 splits,
  // and more while there would be over 256. The last split may be short.
  uint32_t split() const;
  uint32_t splits() const { return (width + split() - 1) / split(); }

  bool operator==(const FfnSpec&) const = default;
};

// A mixture of experts: each row goes through the `chosen` of `experts` FFNs that a router prefers.
// What is not said here is as in kernels::ChooseExpertsArgs.
struct MoeSpec {
  uint32_t experts = 0;
  uint32_t chosen = 0;
  FfnSpec expert;
  ExpertScores scores = ExpertScores::kSoftmax;
  bool normalised = false;
  float factor = 1;
  uint32_t groups = 1;
  uint32_t kept_groups = 1;
  bool group_pairs = false;
  FfnSpec shared;  // every row goes through this one, too; width 0: there is none

  bool operator==(const MoeSpec&) const = default;
};

// Which FFN of a model: that of layers without experts, or in the others each expert, or the shared
// one.
enum class FfnKind : uint8_t { kDense, kExpert, kShared };
inline constexpr FfnKind kFfnKinds[] = {FfnKind::kDense, FfnKind::kExpert, FfnKind::kShared};

// How the parts of a layer follow each other.
enum class Wiring : uint8_t {
  kSequential,  // x += attention(x); x += ffn(x)
  kParallel,    // x += attention(x) + ffn(x)
};

// A layer: attention, and FFN or mixture of experts. Around each of the two are norms, and its
// result is multiplied by the residual factor before it is added.
struct LayerSpec {
  NormSpec norm;
  bool norms_before = true;
  bool norms_after = false;
  Wiring wiring = Wiring::kSequential;
  float residual_factor = 1;
  AttentionSpec attention;
  FfnSpec ffn;
  std::optional<MoeSpec> moe;  // in place of ffn

  // Width 0: the layer has none.
  const FfnSpec& ffn_of(FfnKind kind) const;

  bool operator==(const LayerSpec&) const = default;
};

struct ModelSpec {
  std::string architecture;  // e.g. "llama"
  std::string name;          // for people; may be empty
  uint32_t hidden = 0;
  uint32_t vocab = 0;  // rows of the table of token vectors, and entries of a row of logits
  // Ids of tokens are below this; 1..vocab. Other entries are never drawn.
  uint32_t tokens = 0;
  uint32_t context_length = 0;  // positions the model was trained for
  // The most positions that can be served; more than context_length if RoPE is scaled for them.
  uint32_t longest_context = 0;
  // The positions for which the model is loaded, with whose number LongRoPE and dynamic scaling
  // choose the frequencies of RoPE; context_length if nobody says otherwise.
  uint32_t served_context = 0;
  // Not 0: the frequencies are not those that context_length has. Contexts with equal numbers have
  // equal ones.
  uint32_t rope_context = 0;
  // The table of positions, where the tensor table has one, begins with so many unused vectors.
  uint32_t position_offset = 0;
  float embedding_factor = 1;  // of token vectors
  NormSpec embedding_norm;     // where the tensor table has its weight
  std::vector<RopeSpec> ropes;
  std::vector<KvGroupSpec> kv_groups{{}};
  std::vector<LayerSpec> layers;  // at least one
  // Of each layer, for a cache of FP8; empty: the file has none. Equal layers may have different
  // ones.
  std::vector<KvScales> kv_scales;
  NormSpec output_norm;
  float logit_factor = 1;
  float logit_softcap = 0;         // as AttentionSpec::softcap, after the factor
  bool tied_embedding = false;     // the head is the table of token vectors
  std::vector<TensorRow> tensors;  // where each weight is in the file
  // Tensors that files have and nobody needs, as TensorRow::name. A name that ends with "." stands
  // for all that begin with it.
  std::vector<std::string> unused_tensors;

  // The parts of the first layer. Decoder::Check says whether those of all layers have their sizes.
  const AttentionSpec& attention() const { return layers.front().attention; }
  // That of the first layer that has one; width 0: none has.
  const FfnSpec& ffn(FfnKind kind = FfnKind::kDense) const;
  // The mixture of the first layer that has one; null: none has.
  const MoeSpec* moe() const;

  KvScales KvScalesOf(uint32_t layer) const {
    return kv_scales.empty() ? KvScales() : kv_scales[layer];
  }

  // Splits of the row-parallel products, which fix the order of their sums; of FFNs those of the
  // kind that has the fewest.
  uint32_t attention_splits() const { return attention().splits(); }
  uint32_t ffn_splits() const;
};

}  // namespace flotilla::model
