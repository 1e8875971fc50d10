// BLOOM: ALiBi in place of positions, a norm of the token vectors, LayerNorm, an FFN of GELU
// without a gate (modeling_bloom.py of Hugging Face's transformers).
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kBloom = {
    "bloom", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      using enum TensorRole;
      using enum Extent;
      const bool plain = checkpoint.FindTensor("word_embeddings.weight") != nullptr;
      const std::string prefix = plain ? "" : "transformer.";
      DenseReader reader(checkpoint, in, spec, plain ? "h.*." : "transformer.h.*.");
      reader.layer().ffn = {.activation = Activation::kGeluTanh, .gated = false};
      reader.ReadSizes(NormKind::kLayer, /*ffn_factor=*/4);
      reader.attention().alibi = true;
      in.Require(!in.Bool("apply_residual_connection_post_layernorm", false),
                 "apply_residual_connection_post_layernorm", "is true");
      reader.SetLinearBias(true);
      spec.embedding_norm = reader.layer().norm;
      reader.Embedding(prefix + "word_embeddings");
      reader.Norm(kEmbeddingNorm, "token_embd_norm", prefix + "word_embeddings_layernorm");
      reader.LayerNorm(kAttentionNorm, "attn_norm", "input_layernorm");
      reader.Fused("attn_qkv", "self_attention.query_key_value", FusedQkv::kGroups);
      reader.Linear(kAttentionOutput, "attn_output", "self_attention.dense", kResults, kHidden);
      reader.LayerNorm(kFfnNorm, "ffn_norm", "post_attention_layernorm");
      reader.Linear(kUp, "ffn_up", "mlp.dense_h_to_4h", kHidden, kFfn);
      reader.Linear(kDown, "ffn_down", "mlp.dense_4h_to_h", kFfn, kHidden);
      reader.Norm(kOutputNorm, "output_norm", prefix + "ln_f");
      reader.Head("lm_head");
      reader.Finish();
    }};

}  // namespace flotilla::model
