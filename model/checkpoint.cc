#include "model/checkpoint.h"

#include "model/gguf/gguf_checkpoint.h"

namespace flotilla::model {

// GGUF is the only container so far. Others will be told apart by what a file begins with.
absl::StatusOr<std::shared_ptr<const Checkpoint>> OpenCheckpoint(const std::string& path) {
  return OpenGguf(path);
}

absl::StatusOr<std::shared_ptr<const Checkpoint>> ParseCheckpoint(
    std::span<const std::byte> bytes) {
  return ParseGguf(bytes);
}

}  // namespace flotilla::model
