// StableLM 2 and StableLM 3B: LayerNorm, RoPE over a part of each head, and in some attention and
// FFN in parallel after one norm (modeling_stablelm.py of Hugging Face's transformers).
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kStableLm = {
    "stablelm", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      using enum TensorRole;
      using enum Extent;
      DenseReader reader(checkpoint, in, spec);
      reader.ReadSizes(NormKind::kLayer);
      reader.ReadRope(Pairs::kHalves, Pairs::kHalves);
      if (in.Bool("attention.use_qk_norm", false)) {
        in.Fail(absl::UnimplementedError("StableLM with norms of q and k is not supported"));
      }
      reader.Embedding("model.embed_tokens");
      reader.LayerNorm(kAttentionNorm, "attn_norm", "input_layernorm");
      reader.Qkv("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                 reader.Stated("qkv_bias"));
      reader.Linear(kAttentionOutput, "attn_output", "self_attn.o_proj", kResults, kHidden);
      // llama.cpp's files may state the opposite of what they hold: llama.cpp goes by the norm.
      const bool stated = in.Bool("use_parallel_residual", false);
      if (reader.hf() ? stated : !reader.Has("ffn_norm.weight", "")) {
        reader.layer().wiring = Wiring::kParallel;
      } else {
        reader.LayerNorm(kFfnNorm, "ffn_norm", "post_attention_layernorm");
      }
      reader.Linear(kGate, "ffn_gate", "mlp.gate_proj", kHidden, kFfn);
      reader.Linear(kUp, "ffn_up", "mlp.up_proj", kHidden, kFfn);
      reader.Linear(kDown, "ffn_down", "mlp.down_proj", kFfn, kHidden);
      reader.Norm(kOutputNorm, "output_norm", "model.norm");
      reader.Head("lm_head");
      reader.Finish();
    }};

}  // namespace flotilla::model
