// OLMo 2: norms only after attention and FFN, and of all heads of q and k together
// (modeling_olmo2.py of Hugging Face's transformers).
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kOlmo2 = {
    "olmo2", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      using enum TensorRole;
      using enum Extent;
      DenseReader reader(checkpoint, in, spec);
      reader.ReadSizes(NormKind::kRms);
      reader.ReadRope(Pairs::kHalves, Pairs::kHalves);
      reader.layer().norms_before = false;
      reader.layer().norms_after = true;
      reader.attention().head_norms = HeadNorms::kAllHeads;
      reader.attention().head_norm = reader.layer().norm;
      reader.Embedding("model.embed_tokens");
      const Bias bias = reader.Stated("attention_bias");
      reader.Qkv("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", bias);
      reader.HeadNormRows(kAllQueries, kAllKeys);
      reader.Linear(kAttentionOutput, "attn_output", "self_attn.o_proj", kResults, kHidden, bias);
      reader.LayerNorm(kAttentionPostNorm, "post_attention_norm", "post_attention_layernorm");
      reader.Linear(kGate, "ffn_gate", "mlp.gate_proj", kHidden, kFfn);
      reader.Linear(kUp, "ffn_up", "mlp.up_proj", kHidden, kFfn);
      reader.Linear(kDown, "ffn_down", "mlp.down_proj", kFfn, kHidden);
      reader.LayerNorm(kFfnPostNorm, "post_ffw_norm", "post_feedforward_layernorm");
      reader.Norm(kOutputNorm, "output_norm", "model.norm");
      reader.Head("lm_head");
      reader.Finish();
    }};

}  // namespace flotilla::model
