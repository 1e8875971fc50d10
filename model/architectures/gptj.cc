// GPT-J: attention and FFN in parallel after one LayerNorm, RoPE over a part of each head with
// pairs side by side (modeling_gptj.py of Hugging Face's transformers). llama.cpp does not know it.
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kGptJ = {
    "gptj", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      using enum TensorRole;
      using enum Extent;
      DenseReader reader(checkpoint, in, spec, "transformer.h.*.");
      reader.layer().ffn = {.activation = Activation::kGeluTanh, .gated = false};
      reader.layer().wiring = Wiring::kParallel;
      reader.ReadSizes(NormKind::kLayer, /*ffn_factor=*/4);
      reader.ReadRope(Pairs::kNeighbours, Pairs::kNeighbours);
      reader.SetLinearBias(true);
      reader.Embedding("transformer.wte");
      reader.LayerNorm(kAttentionNorm, "attn_norm", "ln_1");
      reader.Qkv("attn.q_proj", "attn.k_proj", "attn.v_proj", Bias::kNever);
      reader.Linear(kAttentionOutput, "attn_output", "attn.out_proj", kResults, kHidden,
                    Bias::kNever);
      reader.Linear(kUp, "ffn_up", "mlp.fc_in", kHidden, kFfn);
      reader.Linear(kDown, "ffn_down", "mlp.fc_out", kFfn, kHidden);
      reader.Norm(kOutputNorm, "output_norm", "transformer.ln_f");
      reader.Head("lm_head", /*hf_bias=*/true);
      reader.Unused({"transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"});
      reader.Finish();
    }};

}  // namespace flotilla::model
