// OPT: a table of positions that begins with two unused ones, LayerNorm, an FFN of ReLU
// (modeling_opt.py of Hugging Face's transformers). llama.cpp does not know it.
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kOpt = {
    "opt", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      using enum TensorRole;
      using enum Extent;
      const bool plain = checkpoint.FindTensor("decoder.embed_tokens.weight") != nullptr;
      const std::string prefix = plain ? "decoder." : "model.decoder.";
      DenseReader reader(checkpoint, in, spec,
                         plain ? "decoder.layers.*." : "model.decoder.layers.*.");
      reader.layer().ffn = {.activation = Activation::kRelu, .gated = false};
      reader.SetNormEps(1e-5f);  // the file does not say it
      reader.ReadSizes(NormKind::kLayer);
      spec.position_offset = 2;
      in.Require(in.Bool("do_layer_norm_before", true), "do_layer_norm_before",
                 "is false: norms after the residual are not supported");
      in.Uint("word_embed_proj_dim", spec.hidden, spec.hidden, spec.hidden);
      reader.SetLinearBias(in.Bool("use_bias", true));
      in.Require(in.Bool("layer_norm_elementwise_affine", true), "layer_norm_elementwise_affine",
                 "is false: norms without weights are not supported");
      reader.Embedding(prefix + "embed_tokens");
      reader.Add(kPositionEmbedding, "position_embd.weight", prefix + "embed_positions.weight",
                 kHidden, kPositions);
      reader.LayerNorm(kAttentionNorm, "attn_norm", "self_attn_layer_norm");
      reader.Qkv("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj");
      reader.Linear(kAttentionOutput, "attn_output", "self_attn.out_proj", kResults, kHidden);
      reader.LayerNorm(kFfnNorm, "ffn_norm", "final_layer_norm");
      reader.Linear(kUp, "ffn_up", "fc1", kHidden, kFfn);
      reader.Linear(kDown, "ffn_down", "fc2", kFfn, kHidden);
      reader.Norm(kOutputNorm, "output_norm", prefix + "final_layer_norm");
      reader.Head("lm_head");
      reader.Finish();
    }};

}  // namespace flotilla::model
