// Qwen3, dense or with experts: q and k are normed by head (modeling_qwen3.py and
// modeling_qwen3_moe.py of Hugging Face's transformers).
#include "model/architectures/dense.h"

namespace flotilla::model {

extern const Architecture kQwen3 = {
    "qwen3", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadDense(checkpoint, in,
                {.qkv_bias_key = "attention_bias",
                 .output_bias_key = "attention_bias",
                 .head_norms = true},
                spec);
    }};

// llama.cpp normalises the weights of experts always, Hugging Face where the file says so.
extern const Architecture kQwen3Moe = {
    "qwen3_moe", "qwen3moe", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadDense(checkpoint, in,
                {.qkv_bias_key = "attention_bias",
                 .output_bias_key = "attention_bias",
                 .head_norms = true,
                 .experts = kQwenExperts,
                 .normalised = checkpoint.naming() != Naming::kHuggingFace},
                spec);
    }};

}  // namespace flotilla::model
