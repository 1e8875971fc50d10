// Hugging Face folders as checkpoints: config.json, safetensors, tokenizer.json and what stands
// beside them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "model/checkpoint.h"

namespace flotilla::model {

// Opens the folder at `path`. Errors as OpenCheckpoint.
absl::StatusOr<std::shared_ptr<const Checkpoint>> OpenHuggingFace(const std::string& path);

}  // namespace flotilla::model
