// The configuration of a model, as one row of numbers: the shape of the decoder, how it
// rotates positions, and the splits that fix the order of its
// row-parallel sums. These are plain values, read once from the file at start. This code
// allocates no weights and knows no kernel.
//
// An architecture is an entry of a table (config.cc), never a class: an
// architecture that computes something new adds an enum value here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint.h"

namespace flotilla::model {

// Which elements of a head rotate together.
enum class RopeStyle : uint8_t {
  kInterleaved,  // (0,1), (2,3), ...: arch `llama` as GGUF stores it
  kHalfSplit,    // (0, D/2), (1, D/2+1), ...
};

// FFN rows (columns of ffn_down) that make one partial sum of the recipe.
inline constexpr uint32_t kFfnSplitWidth = 128;

struct ModelConfig {
  std::string architecture;  // the row's name, e.g. "llama"
  std::string name;          // general.name, for people; may be empty
  uint32_t hidden = 0;
  uint32_t layers = 0;
  uint32_t heads = 0;  // query heads; a multiple of kv_heads
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;  // of queries, keys and values alike
  uint32_t ffn = 0;       // multiple of 32
  uint32_t vocab = 0;
  uint32_t context_length = 0;  // positions the model was trained for
  RopeStyle rope_style = RopeStyle::kInterleaved;
  uint32_t rope_dim = 0;  // leading elements of a head that rotate; even, <= head_dim
  float rope_base = 0;
  float rms_eps = 0;
  bool tied_embedding = false;  // no output.weight: logits use token_embd

  // Splits of the row-parallel products: attention output is summed by KV head
  // group, FFN down by runs of ffn_split columns, the last of which may be short.
  uint32_t attention_splits() const { return kv_heads; }
  uint32_t ffn_split = kFfnSplitWidth;
  uint32_t ffn_splits() const { return (ffn + ffn_split - 1) / ffn_split; }
};

// Names of the architectures that LoadConfig accepts.
std::vector<std::string_view> KnownArchitectures();

// Reads and checks the configuration: every number is bounded, every tensor of
// the architecture is present with the expected dimensions and a type that can
// be decoded, and none is unexpected. Unimplemented for an architecture or a
// feature (e.g. experts, RoPE scaling) outside the table, naming it;
// InvalidArgument for a file that contradicts itself.
absl::StatusOr<ModelConfig> LoadConfig(const Checkpoint& checkpoint);

}  // namespace flotilla::model
