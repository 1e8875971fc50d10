// `flotilla inspect`: shows people what a model file holds. It reads only the checkpoint, so it
// also shows files that flotilla cannot serve.
#pragma once

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "common/rt/available_memory.h"
#include "model/checkpoint.h"

namespace flotilla::cli {

// Prints what the model is or why it cannot be served, metadata (sorted by key; long arrays and
// strings shortened; control characters escaped) and the tensors with their roles.
// `memory` is what the machine has available: the KV pool that fits in it beside the weights is
// printed too.
void PrintCheckpoint(const model::Checkpoint& file, const AvailableMemory& memory,
                     std::ostream& out);

// Opens the file, with `quantize` of --quantize applied, and prints it to standard output. Errors
// as OpenCheckpoint and QuantizeAtLoad.
absl::Status RunInspect(const std::string& path, const std::string& quantize);

}  // namespace flotilla::cli
