// GPT-2, and GPT-BigCode (StarCoder): a table of positions, LayerNorm, an FFN of GELU without a
// gate (modeling_gpt2.py and modeling_gpt_bigcode.py of Hugging Face's transformers).
#include "model/architectures/dense.h"

namespace flotilla::model {
namespace {

using enum TensorRole;
using enum Extent;

// Hugging Face's GPT-2 has the inputs of its matrices along their rows.
void ReadGpt(DenseReader& reader, std::string_view prefix, FusedQkv layout, bool transposed) {
  ConfigReader& in = reader.in();
  reader.layer().ffn = {.activation = Activation::kGeluTanh, .gated = false};
  reader.ReadSizes(NormKind::kLayer, /*ffn_factor=*/4);
  in.Require(in.Bool("scale_attn_weights", true), "scale_attn_weights", "is false");
  in.Require(!in.Bool("scale_attn_by_inverse_layer_idx", false), "scale_attn_by_inverse_layer_idx",
             "is true");
  reader.SetLinearBias(true);
  const bool turned = reader.hf() && transposed;
  const auto name = [&](std::string_view rest) { return std::string(prefix).append(rest); };
  reader.Embedding(name("wte"));
  reader.Add(kPositionEmbedding, "position_embd.weight", name("wpe.weight"), kHidden, kPositions);
  reader.LayerNorm(kAttentionNorm, "attn_norm", "ln_1");
  reader.Fused("attn_qkv", "attn.c_attn", layout, Bias::kAlways, transposed);
  reader.Linear(kAttentionOutput, "attn_output", "attn.c_proj", kResults, kHidden, Bias::kAlways,
                {}, 0, turned);
  reader.LayerNorm(kFfnNorm, "ffn_norm", "ln_2");
  reader.Linear(kUp, "ffn_up", "mlp.c_fc", kHidden, kFfn, Bias::kAlways, {}, 0, turned);
  reader.Linear(kDown, "ffn_down", "mlp.c_proj", kFfn, kHidden, Bias::kAlways, {}, 0, turned);
  reader.Norm(kOutputNorm, "output_norm", name("ln_f"));
  reader.Head("lm_head");
  // Masks of attention.
  reader.Unused({name("h.*.attn.bias"), name("h.*.attn.masked_bias")});
  reader.Finish();
}

}  // namespace

extern const Architecture kGpt2 = {
    "gpt2", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      // The first files lack the prefix.
      const bool plain = checkpoint.FindTensor("wte.weight") != nullptr;
      DenseReader reader(checkpoint, in, spec, plain ? "h.*." : "transformer.h.*.");
      ReadGpt(reader, plain ? "" : "transformer.", FusedQkv::kSections, /*transposed=*/true);
    }};

extern const Architecture kGptBigCode = {
    "gpt_bigcode", "starcoder",
    [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      DenseReader reader(checkpoint, in, spec, "transformer.h.*.");
      const bool one_kv_head = in.Bool("multi_query", true);
      if (reader.hf() && one_kv_head) reader.SetKvHeads(1);
      ReadGpt(reader, "transformer.", one_kv_head ? FusedQkv::kSections : FusedQkv::kGroups,
              /*transposed=*/false);
    }};

}  // namespace flotilla::model
