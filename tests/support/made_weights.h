// The weights of the cases in tests/data/made, which tests/golden/make/make_cases.py makes too:
// functions of a seed and of their names.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla::testing {

// The bf16 bits of a tensor, as bytes of a safetensors file. Elements are uniform. Those of
// matrices have variance 1 / (the last axis); those of vectors are at most 0.1 from 0, or from 1
// where a norm multiplies by them.
std::string MadeWeights(std::string_view name, const std::vector<std::uint64_t>& shape,
                        std::uint64_t seed);

// Writes the Hugging Face folder of a case: its config.json, the weights that its tensors.tsv
// lists, and a tokenizer with so many tokens, which no text needs; 0: none. False: the case lacks a
// file.
bool WriteMadeFolder(const std::string& case_folder, std::uint64_t seed, std::uint64_t tokens,
                     const std::string& folder);

}  // namespace flotilla::testing
