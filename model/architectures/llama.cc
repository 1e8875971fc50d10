// Llama 1 to 3, SmolLM2, and in GGUF files Mistral and Mixtral, too. Their pairs are neighbours.
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kLlama = {
    "llama", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      DenseOptions options{.llama_cpp_pairs = Pairs::kNeighbours,
                           .qkv_bias_key = "attention_bias",
                           .output_bias_key = "attention_bias",
                           .ffn_bias_key = "mlp_bias"};
      if (checkpoint.naming() != Naming::kHuggingFace) {
        options.experts = kMixtralExperts;
        options.has_window = true;
      }
      options.normalised = true;
      ReadDense(checkpoint, in, options, spec);
    }};

}  // namespace flotilla::model
