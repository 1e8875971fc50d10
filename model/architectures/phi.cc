// Phi-1.5 and Phi-2: attention and FFN in parallel after one LayerNorm, RoPE over a part of each
// head, biases everywhere (modeling_phi.py of Hugging Face's transformers).
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kPhi = {
    "phi", "phi2", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      using enum TensorRole;
      using enum Extent;
      DenseReader reader(checkpoint, in, spec);
      reader.layer().ffn = {.activation = Activation::kGeluTanh, .gated = false};
      reader.layer().wiring = Wiring::kParallel;
      reader.ReadSizes(NormKind::kLayer);
      reader.ReadRope(Pairs::kHalves, Pairs::kHalves);
      if (in.Bool("attention.use_qk_norm", false)) {
        in.Fail(absl::UnimplementedError("Phi with norms of q and k is not supported"));
      }
      reader.SetLinearBias(true);
      reader.Embedding("model.embed_tokens");
      reader.LayerNorm(kAttentionNorm, "attn_norm", "input_layernorm");
      if (reader.Has("attn_qkv.weight", "")) {
        reader.Fused("attn_qkv", "", FusedQkv::kSections);
      } else {
        reader.Qkv("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", Bias::kAlways);
      }
      reader.Linear(kAttentionOutput, "attn_output", "self_attn.dense", kResults, kHidden);
      reader.Linear(kUp, "ffn_up", "mlp.fc1", kHidden, kFfn);
      reader.Linear(kDown, "ffn_down", "mlp.fc2", kFfn, kHidden);
      reader.Norm(kOutputNorm, "output_norm", "model.final_layernorm");
      reader.Head("lm_head", /*hf_bias=*/true);
      reader.Finish();
    }};

}  // namespace flotilla::model
