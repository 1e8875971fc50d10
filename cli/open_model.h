// Opens the model that a role serves.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "cli/flags.h"
#include "model/checkpoint.h"

namespace flotilla::cli {

// The file or folder of --model, with --quantize applied. Errors are those of OpenCheckpoint and
// QuantizeAtLoad.
absl::StatusOr<std::shared_ptr<const model::Checkpoint>> OpenModel(const RoleFlags& flags);

}  // namespace flotilla::cli
