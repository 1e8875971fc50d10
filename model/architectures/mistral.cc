// Mistral, as Hugging Face calls it: Llama with a window in its first version. llama.cpp calls it
// "llama".
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kMistral = {
    "mistral", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadDense(checkpoint, in, {.has_window = true}, spec);
    }};

}  // namespace flotilla::model
