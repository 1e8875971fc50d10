// Writes safetensors files (safetensors_file.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/ggml_type.h"
#include "model/tensor.h"

namespace flotilla::model {

struct SafetensorsEntry {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<uint64_t> shape;  // as Hugging Face has it: the contiguous dimension last
  std::span<const std::byte> data;
};

// A tensor as it is. Its type has a name in such files.
SafetensorsEntry EntryOf(const Tensor& tensor);

// Writes the file at `path`, in place of one that is there, with the entries in this order. It has
// its name only when it is whole and on disk. `metadata` says "format": "pt", as other tools want
// it. Errors by errno; INVALID_ARGUMENT: a type has no name there.
absl::Status WriteSafetensors(const std::string& path, std::span<const SafetensorsEntry> entries);

}  // namespace flotilla::model
