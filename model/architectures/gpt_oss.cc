// gpt-oss: experts with biases, a score without a value for each head, a window in every other
// layer (modeling_gpt_oss.py of Hugging Face's transformers).
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kGptOss = {
    "gpt_oss", "gpt-oss", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      using enum TensorRole;
      using enum Extent;
      DenseReader reader(checkpoint, in, spec);
      in.Require(reader.ReadExperts({.scores = ExpertScores::kChosenSoftmax}), "expert_count",
                 "is missing");
      reader.ReadSizes(NormKind::kRms);
      reader.FinishExperts(Activation::kClippedSwiglu);
      in.Float("swiglu_limit", 7, 7, 7);
      in.Float("swiglu_alpha", 1.702, 1.702, 1.702);
      reader.SetYarnTruncate(false);
      reader.ReadRope(Pairs::kHalves, Pairs::kHalves);
      reader.ReadWindow(/*period=*/2);
      reader.attention().sinks = true;
      reader.Embedding("model.embed_tokens");
      reader.LayerNorm(kAttentionNorm, "attn_norm", "input_layernorm");
      const Bias bias = in.Bool("attention_bias", true) ? Bias::kAlways : Bias::kNever;
      reader.Qkv("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", bias);
      reader.LayerVector(kSinks, "attn_sinks.weight", "self_attn.sinks", kHeads);
      reader.Linear(kAttentionOutput, "attn_output", "self_attn.o_proj", kResults, kHidden, bias);
      reader.LayerNorm(kFfnNorm, "post_attention_norm", "post_attention_layernorm");
      if (reader.hf()) {
        // One tensor for all experts, gate and up in turn. Inputs are along its rows, but if it is
        // quantised.
        const auto is_quantised = [&](const std::string& name) {
          const Tensor* const first = checkpoint.FindTensor("model.layers.0.mlp.experts." + name);
          const bool quantised = first != nullptr && first->composite != nullptr;
          for (const Tensor& tensor : checkpoint.tensors()) {
            if (!tensor.name.ends_with(".mlp.experts." + name)) continue;
            if ((tensor.composite != nullptr) == quantised) continue;
            in.Fail(InvalidArgument(tensor.name, quantised ? " is not" : " is",
                                    " quantised, unlike that of layer 0"));
          }
          return quantised;
        };
        reader.ExpertLinear(kRouter, "", "mlp.router", kHidden, kExperts, Bias::kAlways);
        const int64_t width = reader.expert_width();
        const auto add = [&](TensorRole role, TensorRole bias, const std::string& name,
                             Extent columns, Extent rows, const RowMap& map, uint64_t outputs) {
          const bool quantised = is_quantised(name);
          for (const bool vector : {false, true}) {
            TensorRow& row =
                reader.Add(vector ? bias : role, "",
                           "model.layers.*.mlp.experts." + name + (vector ? "_bias" : ""),
                           vector ? rows : columns, vector ? kOne : rows);
            row.map = map;
            row.rows_in_file = outputs;
            row.transposed = !vector && !quantised;
          }
        };
        const uint64_t both = 2 * static_cast<uint64_t>(width);
        add(kExpertGate, kExpertGateBias, "gate_up_proj", kHidden, kExpertFfn,
            {.run = 1, .stride = 2}, both);
        add(kExpertUp, kExpertUpBias, "gate_up_proj", kHidden, kExpertFfn,
            {.first = 1, .run = 1, .stride = 2}, both);
        add(kExpertDown, kExpertDownBias, "down_proj", kExpertFfn, kHidden, {}, 0);
      } else {
        reader.Experts({}, Bias::kAlways);
      }
      reader.Norm(kOutputNorm, "output_norm", "model.norm");
      reader.Head("lm_head");
      reader.Finish();
    }};

}  // namespace flotilla::model
