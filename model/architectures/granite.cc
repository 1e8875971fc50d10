// Granite 3, dense: Llama with factors of token vectors, residuals, scores and logits
// (modeling_granite.py of Hugging Face's transformers).
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kGranite = {
    "granite", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadDense(checkpoint, in,
                {.llama_cpp_pairs = Pairs::kNeighbours,
                 .qkv_bias_key = "attention_bias",
                 .output_bias_key = "attention_bias",
                 .ffn_bias_key = "mlp_bias"},
                spec);
      spec.embedding_factor = in.Float("embedding_scale", 1e-6, 1e6, 1.0);
      spec.logit_factor = 1.0f / in.Float("logit_scale", 1e-6, 1e6, 1.0);  // a divisor
      const float residual = in.Float("residual_scale", 1e-6, 1e6, 1.0);
      for (LayerSpec& layer : spec.layers) {
        layer.residual_factor = residual;
        layer.attention.scale = in.Float("attention.scale", 1e-6, 1e6, layer.attention.scale);
      }
    }};

}  // namespace flotilla::model
