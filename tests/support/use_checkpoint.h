// Uses all that a checkpoint holds, for tests of hostile files.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/types/tokenizer_bundle.h"
#include "model/chat_template.h"
#include "model/checkpoint.h"

namespace flotilla::testing {

// Each uses as much as is accepted: the next part of a chain is used if the one before was
// accepted. True: all of it was.

// Compiles the template and renders a short chat, and one that many templates refuse.
bool UseTemplate(const std::string& source, const model::ChatTemplateOptions& options);
// Makes the tokenizer and takes a text there and back; renders its chat template.
bool UseTokenizer(const absl::StatusOr<TokenizerBundle>& bundle);
// Reads the model's spec, its tokenizer and what people are shown of the file.
bool UseCheckpoint(const model::Checkpoint& checkpoint);

}  // namespace flotilla::testing
