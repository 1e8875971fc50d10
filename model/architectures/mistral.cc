// Mistral without a sliding window, as Hugging Face calls it; llama.cpp calls it "llama".
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kMistral = {
    "mistral", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadDense(checkpoint, in, {}, spec);
    }};

}  // namespace flotilla::model
