// GPT-NeoX and Pythia: attention and FFN in parallel, each after its LayerNorm, RoPE over a part of
// each head (modeling_gpt_neox.py of Hugging Face's transformers).
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kGptNeoX = {
    "gpt_neox", "gptneox", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      using enum TensorRole;
      using enum Extent;
      DenseReader reader(checkpoint, in, spec, "gpt_neox.layers.*.");
      reader.layer().ffn = {.activation = Activation::kGelu, .gated = false};
      reader.ReadSizes(NormKind::kLayer);
      reader.ReadRope(Pairs::kHalves, Pairs::kHalves);
      if (in.Bool("use_parallel_residual", true)) reader.layer().wiring = Wiring::kParallel;
      reader.SetLinearBias(true);
      const Bias bias = reader.Stated("attention_bias", true);
      reader.Embedding("gpt_neox.embed_in");
      reader.LayerNorm(kAttentionNorm, "attn_norm", "input_layernorm");
      reader.Fused("attn_qkv", "attention.query_key_value", FusedQkv::kGroups, bias);
      reader.Linear(kAttentionOutput, "attn_output", "attention.dense", kResults, kHidden, bias);
      reader.LayerNorm(kFfnNorm, "ffn_norm", "post_attention_layernorm");
      reader.Linear(kUp, "ffn_up", "mlp.dense_h_to_4h", kHidden, kFfn);
      reader.Linear(kDown, "ffn_down", "mlp.dense_4h_to_h", kFfn, kHidden);
      reader.Norm(kOutputNorm, "output_norm", "gpt_neox.final_layer_norm");
      reader.Head("embed_out");
      reader.Unused({"gpt_neox.layers.*.attention.bias", "gpt_neox.layers.*.attention.masked_bias",
                     "gpt_neox.layers.*.attention.rotary_emb.inv_freq"});
      reader.Finish();
    }};

}  // namespace flotilla::model
