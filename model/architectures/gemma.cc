// Gemma 1 to 3, text (modeling_gemma{,2,3}.py of Hugging Face's transformers): token vectors times
// sqrt(hidden), gates of GELU, and norms whose weights lack 1 in Hugging Face's files. From Gemma 2
// on there are norms after attention and FFN, too, and most layers have a window.
#include <algorithm>
#include <cmath>

#include "model/architectures/dense.h"

namespace flotilla::model {
namespace {

using enum TensorRole;
using enum Extent;

void ReadGemma(DenseReader& reader, int version) {
  ConfigReader& in = reader.in();
  ModelSpec& spec = reader.spec();
  reader.SetNormPlus(1);
  reader.ReadSizes(NormKind::kRms);
  Activation& activation = reader.layer().ffn.activation;
  if (version == 1) {
    // The first configurations say "gelu" and mean this.
    if (activation == Activation::kGelu || !reader.hf()) activation = Activation::kGeluTanh;
  } else {
    activation = Activation::kGeluTanh;
    reader.ReadActivation("feed_forward.gate_activation");
  }
  spec.embedding_factor = std::sqrt(static_cast<float>(spec.hidden));
  // Some files of llama.cpp have the second name.
  const char* base = "rope.freq_base_swa";
  if (!in.Has(base) && in.Has("rope.local.freq_base")) base = "rope.local.freq_base";
  const float local_base = version == 3 ? in.Float(base, 1, 1e9, 10000.0) : 0;
  reader.ReadRope(Pairs::kHalves, Pairs::kHalves, local_base);
  if (version >= 2) {
    // llama.cpp's files do not say what the largest models do.
    const uint32_t layers = in.Uint("block_count", 1, 512);
    const bool largest = layers == (version == 2 ? 46 : 62);
    const uint32_t heads = std::max(reader.attention().heads, 1u);
    const double scalar =
        largest ? double{spec.hidden / heads * 1.0f} : reader.attention().head_dim;
    const float divisor = in.Float("attention.query_pre_attn_scalar", 1e-3, 1e6, scalar);
    reader.attention().scale = 1.0f / std::sqrt(divisor);
    // Configurations of Gemma 3 may have one, but its class in transformers does not use it.
    if (version == 2) reader.attention().softcap = in.FloatOrNone("attn_logit_softcapping", 1e6);
    spec.logit_softcap = in.FloatOrNone("final_logit_softcapping", 1e6);
    reader.ReadWindow(version == 2 ? 2 : 6);
    reader.layer().norms_after = true;
  }
  reader.Embedding("model.embed_tokens");
  reader.LayerNorm(kAttentionNorm, "attn_norm", "input_layernorm");
  const Bias bias = reader.Stated("attention_bias");
  reader.Qkv("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", bias);
  reader.Linear(kAttentionOutput, "attn_output", "self_attn.o_proj", kResults, kHidden, bias);
  if (version == 1) {
    reader.LayerNorm(kFfnNorm, "ffn_norm", "post_attention_layernorm");
  } else {
    reader.LayerNorm(kAttentionPostNorm, "post_attention_norm", "post_attention_layernorm");
    reader.LayerNorm(kFfnNorm, "ffn_norm", "pre_feedforward_layernorm");
    reader.LayerNorm(kFfnPostNorm, "post_ffw_norm", "post_feedforward_layernorm");
  }
  reader.Linear(kGate, "ffn_gate", "mlp.gate_proj", kHidden, kFfn);
  reader.Linear(kUp, "ffn_up", "mlp.up_proj", kHidden, kFfn);
  reader.Linear(kDown, "ffn_down", "mlp.down_proj", kFfn, kHidden);
  reader.Norm(kOutputNorm, "output_norm", "model.norm");
  if (version == 3) {
    reader.attention().head_norms = HeadNorms::kShared;
    reader.attention().head_norm = reader.layer().norm;
    reader.HeadNormRows(kHeadDim, kHeadDim);
  }
  reader.Head("lm_head");
  reader.Finish();
}

template <int version>
void ReadGemmaVersion(const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
  DenseReader reader(checkpoint, in, spec);
  ReadGemma(reader, version);
}

}  // namespace

extern const Architecture kGemma = {"gemma", "", ReadGemmaVersion<1>};
extern const Architecture kGemma2 = {"gemma2", "", ReadGemmaVersion<2>};
extern const Architecture kGemma3 = {"gemma3", "gemma3_text", ReadGemmaVersion<3>};

}  // namespace flotilla::model
