// Writes Hugging Face folders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/types/tokenizer_bundle.h"
#include "model/checkpoint.h"

namespace flotilla::testing {

// The nearest bf16, or of two the one that is even.
std::uint16_t ToBf16(float value);

struct HfTensor {
  std::string name;
  std::string dtype;  // e.g. "BF16"
  std::vector<std::uint64_t> shape;
  std::string data;
};

// A tensor of a file, as it is.
HfTensor CopyOf(const model::Tensor& tensor);

// The bytes of a safetensors file with these tensors, in this order.
std::string Safetensors(const std::vector<HfTensor>& tensors);
// The same with a header that may be wrong.
std::string Safetensors(std::string_view header, std::string_view data);

void WriteFile(const std::string& path, std::string_view text);

// tokenizer.json and tokenizer_config.json of a byte-level BPE whose pre-tokenizer is "smollm".
nlohmann::ordered_json TokenizerJson(const TokenizerBundle& bundle);
nlohmann::ordered_json TokenizerConfigJson(const TokenizerBundle& bundle);

// Writes a Llama as a folder: weights rounded to bf16, in two files, and the tokenizer. Of its
// layers the first `layers`; 0: all.
void WriteLlamaFolder(const model::Checkpoint& llama, const std::string& folder,
                      std::uint32_t layers = 0);

// Writes tests/data/tiny/gpt_oss with its experts rounded to MXFP4: as such a checkpoint has them,
// or as bf16, which is exact.
void WriteMxfp4Folder(const std::string& folder, bool quantised);

}  // namespace flotilla::testing
