// StarCoder2: LayerNorm, an FFN of GELU without a gate, biases and a window (modeling_starcoder2.py
// of Hugging Face's transformers).
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kStarCoder2 = {
    "starcoder2", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      using enum TensorRole;
      using enum Extent;
      DenseReader reader(checkpoint, in, spec);
      reader.layer().ffn = {.activation = Activation::kGeluTanh, .gated = false};
      reader.ReadSizes(NormKind::kLayer);
      reader.ReadRope(Pairs::kHalves, Pairs::kHalves);
      reader.ReadWindow(0);
      reader.SetLinearBias(in.Bool("use_bias", true));
      reader.Embedding("model.embed_tokens");
      reader.LayerNorm(kAttentionNorm, "attn_norm", "input_layernorm");
      reader.Qkv("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj");
      reader.Linear(kAttentionOutput, "attn_output", "self_attn.o_proj", kResults, kHidden);
      reader.LayerNorm(kFfnNorm, "ffn_norm", "post_attention_layernorm");
      reader.Linear(kUp, "ffn_up", "mlp.c_fc", kHidden, kFfn);
      reader.Linear(kDown, "ffn_down", "mlp.c_proj", kFfn, kHidden);
      reader.Norm(kOutputNorm, "output_norm", "model.norm");
      reader.Head("lm_head");
      reader.Finish();
    }};

}  // namespace flotilla::model
