// Writes folders of models whose experts are one tensor.
#pragma once

#include <string>

namespace flotilla::testing {

// Writes the model of the folder `from` with two tensors for all experts of a layer, as
// transformers 5 has them in memory. Outputs are along the rows, or with `turned` inputs.
void WriteFusedFolder(const std::string& from, const std::string& folder, bool turned = false);

}  // namespace flotilla::testing
