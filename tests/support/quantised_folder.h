// Hugging Face folders whose linear layers are quantised, with codes by chance. What they mean is
// proven by tests/model/huggingface/quantised_layers_test.cc; these are whole models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/checkpoint.h"

namespace flotilla::testing {

// What the layers of a model are, one after the other, e.g. {"w4", "w8_zero"}; all of one method.
struct QuantisedLayers {
  std::string name;  // for tests
  std::vector<std::string> formats;
};

// All formats: each packed kind of quantised folders has one of them.
std::vector<QuantisedLayers> AllQuantisedLayers();

// Those that recipe kFast multiplies by activations of 8 bits.
std::vector<QuantisedLayers> W8A8Layers();

// Writes the model of the folder `from` with each matrix of its decoder layers, but for those of
// routers, in the format of the layer. The weights are others, of about the same size.
void WriteQuantisedFolder(const std::string& from, const QuantisedLayers& layers,
                          std::uint64_t seed, const std::string& folder);

// Writes the model of the folder `from`, with the weights that `file` has of it, in fp32.
void WriteFp32Folder(const std::string& from, const model::Checkpoint& file,
                     const std::string& folder);

}  // namespace flotilla::testing
