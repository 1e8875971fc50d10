#include "model/checkpoint.h"

#include <filesystem>

#include "common/types/text.h"
#include "model/gguf/gguf_checkpoint.h"
#include "model/gguf/gguf_parts.h"
#include "model/huggingface/hf_checkpoint.h"

namespace flotilla::model {

absl::StatusOr<std::shared_ptr<const Checkpoint>> OpenCheckpoint(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return OpenHuggingFace(path);
  if (path.ends_with(".safetensors")) {
    return InvalidArgument(path, " is one file of a Hugging Face folder; give the folder's path");
  }
  return OpenGguf(path);
}

absl::StatusOr<std::shared_ptr<const Checkpoint>> ParseCheckpoint(
    std::span<const std::byte> bytes) {
  return ParseGguf({&bytes, 1});
}

absl::Status InFile(std::string_view path, const absl::Status& status) {
  if (status.ok() || path.empty()) return status;
  return absl::Status(status.code(), Cat(path, ": ", status.message()));
}

std::string_view ModelNameOf(std::string_view file) { return GgufModelName(file); }

}  // namespace flotilla::model
