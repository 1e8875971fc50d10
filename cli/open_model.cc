#include "cli/open_model.h"

#include "model/quantize_at_load.h"

namespace flotilla::cli {

absl::StatusOr<std::shared_ptr<const model::Checkpoint>> OpenModel(const RoleFlags& flags) {
  const auto method = model::ParseLoadQuantization(flags.quantize);
  if (!method.ok()) return method.status();
  auto file = model::OpenCheckpoint(flags.model);
  if (!file.ok()) return file.status();
  return model::QuantizeAtLoad(*std::move(file), *method);
}

}  // namespace flotilla::cli
