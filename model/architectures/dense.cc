#include "model/architectures/dense.h"

#include <cmath>
#include <cstdint>
#include <string_view>

#include "common/types/text.h"
#include "model/rope_frequencies.h"

namespace flotilla::model {
namespace {

// Bounds of accepted values. They are several times those of the largest published model,
// and small enough that products of two stay far below 2^63.
constexpr uint64_t kMaxLayers = 512;
constexpr uint64_t kMaxHidden = 1 << 16;
constexpr uint64_t kMaxHeads = 1 << 10;
constexpr uint64_t kMaxHeadDim = 512;
constexpr uint64_t kMaxFfn = 1 << 20;
constexpr uint64_t kMaxContext = 1 << 24;

void RefuseUnknownFeatures(const Configuration& configuration, ConfigReader& in) {
  in.RefuseIfSet("expert_count");
  in.RefuseIfSet("attention.sliding_window");
  constexpr std::string_view kActivation = "feed_forward.activation";
  if (const auto name = configuration.String(kActivation); name.ok() && *name != "silu") {
    in.Fail(Unimplemented(configuration.NameOf(kActivation), " = '", *name, "' is not supported"));
  }
}

constexpr std::string_view kFactors = "rope_freqs.weight";

// Llama 3.1's scaling is stated in numbers by Hugging Face, and in factors by llama.cpp.
RopeSpec ReadRope(const Checkpoint& checkpoint, ConfigReader& in, uint32_t dim) {
  constexpr std::string_view kScaling = "rope.scaling.type";
  const Configuration& configuration = checkpoint.configuration();
  const float base = in.Float("rope.freq_base", 1, 1e9, 10000.0);
  const std::string_view scaling = configuration.String(kScaling).value_or("none");
  if (!in.status().ok()) return {};
  RopeSpec rope{RopeFrequencies(dim, base)};
  if (scaling == "linear") {
    const float factor = in.Float("rope.scaling.factor", 1e-3, 1e6, std::nullopt);
    for (float& frequency : rope.frequencies) frequency /= factor;
  } else if (scaling == "llama3") {
    const Llama3Scaling numbers{
        .factor = in.Float("rope.scaling.factor", 1, 1e6, std::nullopt),
        .low_freq_factor = in.Float("rope.scaling.low_freq_factor", 1e-3, 1e6, std::nullopt),
        .high_freq_factor = in.Float("rope.scaling.high_freq_factor", 1e-3, 1e6, std::nullopt),
        .original_context =
            static_cast<float>(in.Uint("rope.scaling.original_context_length", 1, kMaxContext))};
    in.Require(numbers.high_freq_factor > numbers.low_freq_factor, "rope.scaling.high_freq_factor",
               "is not above low_freq_factor");
    if (in.status().ok()) ScaleAsLlama3(numbers, rope.frequencies);
  } else if (scaling != "none") {
    in.Fail(Unimplemented(configuration.NameOf(kScaling), " = '", scaling, "' is not supported"));
  }
  const Tensor* factors = checkpoint.FindTensor(kFactors);
  std::vector<float> values(rope.frequencies.size());
  if (factors == nullptr || factors->dims[0] != values.size()) return rope;
  in.Fail(DequantizeRow(factors->type, factors->data, values));
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(values[i] >= 1e-3f && values[i] <= 1e6f)) {
      in.Fail(InvalidArgument("tensor ", kFactors, " has ", values[i], ", not 0.001..1e6"));
    }
    rope.frequencies[i] /= values[i];
  }
  return rope;
}

void AddTensors(const Checkpoint& checkpoint, const DenseOptions& options, ModelSpec& spec) {
  using enum TensorRole;
  using enum Extent;
  const bool hf = checkpoint.naming() == Naming::kHuggingFace;
  const TensorFix pairs = hf ? TensorFix::kInterleavePairs : options.pairs;
  const auto add = [&](TensorRole role, std::string_view llama_cpp, std::string_view hugging_face,
                       Extent columns, Extent rows = kOne, TensorFix fix = TensorFix::kNone) {
    spec.tensors.push_back({role, hf ? hugging_face : llama_cpp, columns, rows, fix});
  };
  add(kTokenEmbedding, "token_embd.weight", "model.embed_tokens.weight", kHidden, kVocabulary);
  add(kAttentionNorm, "blk.*.attn_norm.weight", "model.layers.*.input_layernorm.weight", kHidden);
  add(kQuery, "blk.*.attn_q.weight", "model.layers.*.self_attn.q_proj.weight", kHidden, kQueries,
      pairs);
  add(kKey, "blk.*.attn_k.weight", "model.layers.*.self_attn.k_proj.weight", kHidden, kKeys, pairs);
  add(kValue, "blk.*.attn_v.weight", "model.layers.*.self_attn.v_proj.weight", kHidden, kKeys);
  add(kAttentionOutput, "blk.*.attn_output.weight", "model.layers.*.self_attn.o_proj.weight",
      kQueries, kHidden);
  add(kFfnNorm, "blk.*.ffn_norm.weight", "model.layers.*.post_attention_layernorm.weight", kHidden);
  add(kGate, "blk.*.ffn_gate.weight", "model.layers.*.mlp.gate_proj.weight", kHidden, kFfn);
  add(kUp, "blk.*.ffn_up.weight", "model.layers.*.mlp.up_proj.weight", kHidden, kFfn);
  add(kDown, "blk.*.ffn_down.weight", "model.layers.*.mlp.down_proj.weight", kFfn, kHidden);
  add(kOutputNorm, "output_norm.weight", "model.norm.weight", kHidden);
  if (options.head_norms) {
    add(kQueryNorm, "blk.*.attn_q_norm.weight", "model.layers.*.self_attn.q_norm.weight", kHeadDim,
        kOne, pairs);
    add(kKeyNorm, "blk.*.attn_k_norm.weight", "model.layers.*.self_attn.k_norm.weight", kHeadDim,
        kOne, pairs);
  }
  if (checkpoint.FindTensor(kFactors) != nullptr) {
    add(TensorRole::kRopeFactors, kFactors, kFactors, kPairs);
  }
  const std::string_view head = hf ? "lm_head.weight" : "output.weight";
  spec.tied_embedding = checkpoint.FindTensor(head) == nullptr;
  if (!spec.tied_embedding) add(kHead, "output.weight", "lm_head.weight", kHidden, kVocabulary);
}

}  // namespace

void ReadDense(const Checkpoint& checkpoint, ConfigReader& in, const DenseOptions& options,
               ModelSpec& spec) {
  const uint32_t layers = in.Uint("block_count", 1, kMaxLayers);
  spec.hidden = in.Uint("embedding_length", 32, kMaxHidden);
  LayerSpec layer;
  AttentionSpec& attention = layer.attention;
  attention.heads = in.Uint("attention.head_count", 1, kMaxHeads);
  attention.kv_heads = in.Uint("attention.head_count_kv", 1, kMaxHeads, attention.heads);
  layer.ffn.width = in.Uint("feed_forward_length", 32, kMaxFfn);
  spec.context_length = in.Uint("context_length", 1, kMaxContext);
  if (!in.status().ok()) return;
  const uint64_t default_dim = spec.hidden / attention.heads;
  attention.head_dim = in.Uint("attention.key_length", 16, kMaxHeadDim, default_dim);
  const uint32_t value_dim = in.Uint("attention.value_length", 16, kMaxHeadDim, default_dim);
  const uint32_t rope_dim =
      in.Uint("rope.dimension_count", 2, attention.head_dim, attention.head_dim);
  layer.norm_eps = in.Float("attention.layer_norm_rms_epsilon", 1e-12, 1e-1, std::nullopt);
  if (!in.status().ok()) return;
  in.Require(spec.hidden % 32 == 0, "embedding_length", "is not a multiple of 32");
  in.Require(layer.ffn.width % 32 == 0, "feed_forward_length", "is not a multiple of 32");
  in.Require(attention.heads % attention.kv_heads == 0, "attention.head_count",
             "is not a multiple of attention.head_count_kv");
  in.Require(attention.head_dim % 16 == 0, "attention.key_length", "is not a multiple of 16");
  in.Require(value_dim == attention.head_dim, "attention.value_length", "differs from key_length");
  RefuseUnknownFeatures(checkpoint.configuration(), in);
  if (rope_dim != attention.head_dim) {
    in.Fail(Unimplemented("RoPE over ", rope_dim, " of ", attention.head_dim,
                          " elements of a head is not supported"));
  }
  if (!in.status().ok()) return;
  attention.head_norms = options.head_norms;
  attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim));
  spec.ropes = {ReadRope(checkpoint, in, rope_dim)};
  spec.layers.assign(layers, layer);
  spec.output_norm_eps = layer.norm_eps;
  AddTensors(checkpoint, options, spec);
}

}  // namespace flotilla::model
