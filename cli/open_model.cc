#include "cli/open_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/text_file.h"
#include "model/chat_template.h"
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

absl::StatusOr<TokenizerBundle> ReadTokenizer(const RoleFlags& flags,
                                              const model::Checkpoint& file) {
  absl::StatusOr<TokenizerBundle> bundle = file.ReadTokenizer();
  if (!bundle.ok() || flags.chat_template.empty()) return bundle;
  absl::StatusOr<std::string> text = ReadTextFile(flags.chat_template);
  absl::Status status = text.status();
  if (status.ok()) status = model::ChatTemplate::Compile(*text).status();
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat("--chat-template ", flags.chat_template, ": ",
                                                    status.message()));
  }
  bundle->chat_template = *std::move(text);
  bundle->more_templates.clear();
  return bundle;
}

}  // namespace flotilla::cli
