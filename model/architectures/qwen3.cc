// Qwen3, dense: q and k are normed by head (modeling_qwen3.py of Hugging Face's transformers).
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kQwen3 = {
    "qwen3", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadDense(checkpoint, in, {.head_norms = true}, spec);
    }};

}  // namespace flotilla::model
