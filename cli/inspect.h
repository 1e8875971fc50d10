// `flotilla inspect`: shows people what a model file holds. It reads only the checkpoint, so it
// also shows files that flotilla cannot serve.
#pragma once

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "model/checkpoint.h"

namespace flotilla::cli {

// Prints what the model is or why it cannot be served, metadata (sorted by key; long arrays and
// strings shortened; control characters escaped) and the tensors with their roles.
void PrintCheckpoint(const model::Checkpoint& file, std::ostream& out);

// Opens the file, with `quantize` of --quantize applied, and prints it to standard output. Errors
// as OpenCheckpoint and QuantizeAtLoad.
absl::Status RunInspect(const std::string& path, const std::string& quantize);

}  // namespace flotilla::cli
