// Falcon: attention and FFN in parallel, LayerNorm, an FFN of GELU without a gate
// (modeling_falcon.py of Hugging Face's transformers). The first models have one KV head and one
// norm; the later ones groups of heads, and often a norm for each of the two.
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kFalcon = {
    "falcon", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      using enum TensorRole;
      using enum Extent;
      DenseReader reader(checkpoint, in, spec, "transformer.h.*.");
      const bool groups = in.Bool("new_decoder_architecture", false);
      if (reader.hf() && !groups && in.Bool("multi_query", true)) reader.SetKvHeads(1);
      reader.layer().ffn = {.activation = Activation::kGelu, .gated = false};
      reader.ReadSizes(NormKind::kLayer, /*ffn_factor=*/4);
      // llama.cpp's files do not state the base of RoPE, which is 500042 in Falcon 11B alone.
      const bool is_11b =
          !reader.hf() && in.Uint("block_count", 1, 512) == 60 && spec.hidden == 4096;
      in.Require(!is_11b || in.Has("rope.freq_base"), "rope.freq_base",
                 "is missing, and is not 10000 in Falcon 11B: use the Hugging Face folder");
      reader.ReadRope(Pairs::kHalves, Pairs::kHalves);
      in.Require(!in.Bool("alibi", false), "alibi", "is true, which is not supported");
      in.Require(in.Bool("parallel_attn", true), "parallel_attn",
                 "is false, which is not supported");
      reader.layer().wiring = Wiring::kParallel;
      reader.Embedding("transformer.word_embeddings");
      reader.SetLinearBias(in.Bool("bias", false));
      const bool two_norms = reader.hf()
                                 ? groups && in.Uint("num_ln_in_parallel_attn", 1, 2, 2) == 2
                                 : reader.Has("attn_norm_2.weight", "");
      if (two_norms) {
        reader.LayerNorm(kAttentionNorm, "attn_norm_2", "ln_attn");
        reader.LayerNorm(kFfnNorm, "attn_norm", "ln_mlp");
      } else {
        reader.LayerNorm(kAttentionNorm, "attn_norm", "input_layernorm");
      }
      reader.Fused("attn_qkv", "self_attention.query_key_value", FusedQkv::kGroups);
      reader.Linear(kAttentionOutput, "attn_output", "self_attention.dense", kResults, kHidden);
      reader.Linear(kUp, "ffn_up", "mlp.dense_h_to_4h", kHidden, kFfn);
      reader.Linear(kDown, "ffn_down", "mlp.dense_4h_to_h", kFfn, kHidden);
      reader.Norm(kOutputNorm, "output_norm", "transformer.ln_f");
      reader.Head("lm_head");
      reader.Finish();
    }};

}  // namespace flotilla::model
