// Opens the model that a role serves.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/flags.h"
#include "common/types/tokenizer_bundle.h"
#include "model/checkpoint.h"

namespace flotilla::cli {

// The file or folder at `path`, with `quantize` of --quantize applied. Errors are those of
// OpenCheckpoint and QuantizeAtLoad.
absl::StatusOr<std::shared_ptr<const model::Checkpoint>> OpenModel(const std::string& path,
                                                                   const std::string& quantize);
// The same of --model.
absl::StatusOr<std::shared_ptr<const model::Checkpoint>> OpenModel(const RoleFlags& flags);

// The tokenizer of that model, with --chat-template applied. Errors are those of
// Checkpoint::ReadTokenizer, and about a template that cannot be used.
absl::StatusOr<TokenizerBundle> ReadTokenizer(const RoleFlags& flags,
                                              const model::Checkpoint& file);

}  // namespace flotilla::cli
