// From a model file to what the model is.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/checkpoint.h"
#include "model/spec.h"

namespace flotilla::model {

// Names of the architectures that LoadSpec accepts.
std::vector<std::string_view> KnownArchitectures();

// Reads and checks the configuration: every number is bounded, every tensor of the architecture
// is present with the expected shape and a type that can be decoded, and none is unexpected.
// Errors begin with the path of the file. UNIMPLEMENTED for an architecture or a feature (e.g. a
// scaling of RoPE) that flotilla does not know, naming it; INVALID_ARGUMENT for a file that
// contradicts itself. The spec is for `served_context` positions, which the caller compares with
// the longest context; 0: those the model was trained for.
absl::StatusOr<ModelSpec> LoadSpec(const Checkpoint& checkpoint, uint32_t served_context = 0);

}  // namespace flotilla::model
