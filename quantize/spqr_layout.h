// SpQR matrices as the package spqr-quant has them in a Hugging Face folder (quant_method "spqr",
// see model/huggingface/quantization/spqr.cc), without an order of inputs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/huggingface/json_file.h"
#include "quantize/compressed_tensors.h"
#include "quantize/spqr.h"

namespace flotilla::quantize {

// Adds the layer whose float matrix would be `name` with ".weight".
void AddSpqr(std::string_view name, const SpqrMatrix& matrix, CompressedLayers& layers);

// Whether a tensor is one of those that AddSpqr makes. The configuration has their sizes.
bool IsOfSpqr(std::string_view tensor);

// The object quantization_config of such a folder. `sizes` are those of the tensors of all its
// layers. `ignored` are the names of linear layers that stay as they are.
model::Json SpqrConfig(const std::map<std::string, uint64_t>& sizes,
                       const std::vector<std::string>& ignored);

}  // namespace flotilla::quantize
