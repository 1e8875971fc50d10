// ERNIE 4.5, dense: Llama whose pairs are neighbours in every file (modeling_ernie4_5.py of Hugging
// Face's transformers). All linear layers have a bias where config.json says use_bias.
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kErnie45 = {
    "ernie4_5", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadDense(checkpoint, in,
                {.llama_cpp_pairs = Pairs::kNeighbours,
                 .hf_pairs = Pairs::kNeighbours,
                 .qkv_bias_key = "use_bias",
                 .output_bias_key = "use_bias",
                 .ffn_bias_key = "use_bias"},
                spec);
    }};

}  // namespace flotilla::model
