// GLM-4 of 2025: norms before and after attention and FFN, RoPE over half of each head with pairs
// side by side, gate and up in one tensor (modeling_glm4.py of Hugging Face's transformers).
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kGlm4 = {
    "glm4", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      using enum TensorRole;
      using enum Extent;
      DenseReader reader(checkpoint, in, spec);
      reader.ReadSizes(NormKind::kRms);
      reader.ReadRope(Pairs::kNeighbours, Pairs::kNeighbours);
      reader.layer().norms_after = true;
      reader.Embedding("model.embed_tokens");
      reader.LayerNorm(kAttentionNorm, "attn_norm", "input_layernorm");
      reader.Qkv("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                 reader.Stated("attention_bias", true));
      reader.Linear(kAttentionOutput, "attn_output", "self_attn.o_proj", kResults, kHidden);
      reader.LayerNorm(kAttentionPostNorm, "post_attention_norm", "post_self_attn_layernorm");
      reader.LayerNorm(kFfnNorm, "ffn_norm", "post_attention_layernorm");
      reader.FusedGateUp("mlp.gate_up_proj");
      reader.Linear(kDown, "ffn_down", "mlp.down_proj", kFfn, kHidden);
      reader.LayerNorm(kFfnPostNorm, "post_ffw_norm", "post_mlp_layernorm");
      reader.Norm(kOutputNorm, "output_norm", "model.norm");
      reader.Head("lm_head");
      reader.Finish();
    }};

}  // namespace flotilla::model
