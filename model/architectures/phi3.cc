// Phi-3 and Phi-4: Llama with q, k and v in one tensor, and gate and up in another; a window in
// some (modeling_phi3.py of Hugging Face's transformers).
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kPhi3 = {
    "phi3", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      using enum TensorRole;
      using enum Extent;
      DenseReader reader(checkpoint, in, spec);
      reader.ReadSizes(NormKind::kRms);
      reader.ReadRope(Pairs::kHalves, Pairs::kHalves);
      reader.ReadWindow(0);
      reader.Embedding("model.embed_tokens");
      reader.LayerNorm(kAttentionNorm, "attn_norm", "input_layernorm");
      reader.Fused("attn_qkv", "self_attn.qkv_proj", FusedQkv::kSections);
      reader.Linear(kAttentionOutput, "attn_output", "self_attn.o_proj", kResults, kHidden);
      reader.LayerNorm(kFfnNorm, "ffn_norm", "post_attention_layernorm");
      reader.FusedGateUp("mlp.gate_up_proj");
      reader.Linear(kDown, "ffn_down", "mlp.down_proj", kFfn, kHidden);
      reader.Norm(kOutputNorm, "output_norm", "model.norm");
      reader.Head("lm_head");
      reader.Finish();
    }};

}  // namespace flotilla::model
