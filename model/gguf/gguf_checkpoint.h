// GGUF files as checkpoints.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "model/checkpoint.h"

namespace flotilla::model {

// As OpenCheckpoint, and as ParseCheckpoint of a file's parts (gguf_parts.h), at least one.
absl::StatusOr<std::shared_ptr<const Checkpoint>> OpenGguf(const std::string& path);
absl::StatusOr<std::shared_ptr<const Checkpoint>> ParseGguf(
    std::span<const std::span<const std::byte>> parts);

}  // namespace flotilla::model
