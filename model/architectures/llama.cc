// Llama 1 to 3, Mistral, SmolLM2. GGUF stores the pairs of a head interleaved.
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kLlama = {
    "llama", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadDense(checkpoint, in, {}, spec);
    }};

}  // namespace flotilla::model
