// Mistral and Mixtral, as Hugging Face calls them: Llama with a window in its first versions, and
// Llama with experts (modeling_mixtral.py of Hugging Face's transformers). llama.cpp calls both
// "llama".
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kMistral = {
    "mistral", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadDense(checkpoint, in, {.has_window = true}, spec);
    }};

extern const Architecture kMixtral = {
    "mixtral", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadDense(checkpoint, in,
                {.has_window = true, .experts = kMixtralExperts, .normalised = true}, spec);
    }};

}  // namespace flotilla::model
