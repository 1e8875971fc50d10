// Llama 1 to 3, SmolLM2, and in GGUF files Mistral, too. Their pairs are neighbours.
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kLlama = {
    "llama", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadDense(checkpoint, in, {.llama_cpp_pairs = Pairs::kNeighbours}, spec);
    }};

}  // namespace flotilla::model
