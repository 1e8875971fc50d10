#include "cli/open_model.h"

#include "model/quantize_at_load.h"

namespace flotilla::cli {

absl::StatusOr<std::shared_ptr<const model::Checkpoint>> OpenModel(const std::string& path,
                                                                   const std::string& quantize) {
  const auto method = model::ParseLoadQuantization(quantize);
  if (!method.ok()) return method.status();
  auto file = model::OpenCheckpoint(path);
  if (!file.ok()) return file.status();
  return model::QuantizeAtLoad(*std::move(file), *method);
}

absl::StatusOr<std::shared_ptr<const model::Checkpoint>> OpenModel(const RoleFlags& flags) {
  return OpenModel(flags.model, flags.quantize);
}

}  // namespace flotilla::cli
