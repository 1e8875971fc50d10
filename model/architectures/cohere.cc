// Cohere's Command R and Command R7B (modeling_cohere{,2}.py of Hugging Face's transformers):
// LayerNorm without a bias, attention and FFN in parallel after one norm, pairs side by side, and
// logits with a factor. The second has windows, and positions only in layers with one.
#include "model/architectures/dense.h"

namespace flotilla::model {
namespace {

using enum TensorRole;
using enum Extent;

void ReadCohere(DenseReader& reader, int version) {
  ConfigReader& in = reader.in();
  reader.ReadSizes(NormKind::kLayer);
  reader.SetNormBias(false);
  reader.ReadRope(Pairs::kNeighbours, Pairs::kNeighbours);
  reader.layer().wiring = Wiring::kParallel;
  reader.spec().logit_factor = in.Float("logit_scale", 1e-6, 1e6, 1.0);
  if (version == 2) reader.ReadWindow(4);
  reader.Embedding("model.embed_tokens");
  reader.LayerNorm(kAttentionNorm, "attn_norm", "input_layernorm");
  const Bias bias = reader.Stated("attention_bias");
  reader.Qkv("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", bias);
  reader.Linear(kAttentionOutput, "attn_output", "self_attn.o_proj", kResults, kHidden, bias);
  reader.Linear(kGate, "ffn_gate", "mlp.gate_proj", kHidden, kFfn);
  reader.Linear(kUp, "ffn_up", "mlp.up_proj", kHidden, kFfn);
  reader.Linear(kDown, "ffn_down", "mlp.down_proj", kFfn, kHidden);
  reader.Norm(kOutputNorm, "output_norm", "model.norm");
  const bool norms = reader.hf() ? version == 1 && in.Bool("attention.use_qk_norm", false)
                                 : reader.Has("attn_q_norm.weight", "");
  if (norms) {  // Command R+
    reader.attention().head_norms = HeadNorms::kOwn;
    reader.attention().head_norm = reader.layer().norm;
    reader.OwnHeadNormRows();
  }
  reader.Head("lm_head");
  reader.Finish();
  if (version == 1) return;
  for (LayerSpec& layer : reader.spec().layers) {
    if (layer.attention.window == 0) layer.attention.rope.reset();
  }
}

template <int version>
void ReadCohereVersion(const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
  DenseReader reader(checkpoint, in, spec);
  ReadCohere(reader, version);
}

}  // namespace

extern const Architecture kCohere = {"cohere", "command-r", ReadCohereVersion<1>};
extern const Architecture kCohere2 = {"cohere2", "", ReadCohereVersion<2>};

}  // namespace flotilla::model
