// SmolLM3: Llama whose every fourth layer has no positions (modeling_smollm3.py of Hugging Face's
// transformers).
#include <vector>

#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kSmolLm3 = {
    "smollm3", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadDense(checkpoint, in,
                {.llama_cpp_pairs = Pairs::kNeighbours,
                 .qkv_bias_key = "attention_bias",
                 .output_bias_key = "attention_bias",
                 .ffn_bias_key = "mlp_bias"},
                spec);
      if (!in.status().ok()) return;
      constexpr std::string_view kLayers = "rope.layers";
      const uint32_t interval = in.Uint("rope.layer_interval", 1, 1 << 20, 4);
      if (!in.status().ok()) return;
      std::vector<bool> with_rope(spec.layers.size());
      for (size_t i = 0; i < with_rope.size(); ++i) with_rope[i] = (i + 1) % interval != 0;
      if (checkpoint.configuration().Has(kLayers)) {
        with_rope = in.Flags(kLayers, spec.layers.size());
      }
      for (size_t i = 0; i < with_rope.size(); ++i) {
        if (!with_rope[i]) spec.layers[i].attention.rope.reset();
      }
    }};

}  // namespace flotilla::model
