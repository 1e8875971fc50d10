// Qwen2 and Qwen2.5: Llama with biases of q, k and v. Layers from max_window_layers on may have a
// window. Qwen2-MoE has experts beside one that all rows share (modeling_qwen2_moe.py of Hugging
// Face's transformers).
#include "model/architectures/dense.h"

namespace flotilla::model {

namespace {

void ReadQwen2(const Checkpoint& checkpoint, ConfigReader& in, const ExpertNames& experts,
               ModelSpec& spec) {
  const bool windows = checkpoint.configuration().Has("attention.sliding_window");
  ReadDense(checkpoint, in,
            {.qkv_bias_key = experts.router.empty() ? "" : "qkv_bias",
             .qkv_bias = true,
             .has_window = windows,
             .experts = experts},
            spec);
  const bool listed = checkpoint.configuration().Has("attention.sliding_window_pattern");
  if (!windows || listed || !in.status().ok()) return;
  const uint32_t first = in.Uint("max_window_layers", 0, 1 << 20, 0);
  for (uint32_t i = 0; i < spec.layers.size() && i < first; ++i) {
    spec.layers[i].attention.window = 0;
  }
}

}  // namespace

extern const Architecture kQwen2 = {
    "qwen2", "", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadQwen2(checkpoint, in, {}, spec);
    }};

extern const Architecture kQwen2Moe = {
    "qwen2_moe", "qwen2moe", [](const Checkpoint& checkpoint, ConfigReader& in, ModelSpec& spec) {
      ReadQwen2(checkpoint, in, kQwenExperts, spec);
    }};

}  // namespace flotilla::model
