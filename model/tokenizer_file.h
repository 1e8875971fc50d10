// The part of a model file that turns text into tokens and back, as a file of its own. A
// router gets this file, so that it needs no model.
#pragma once

#include <string>

#include "model/gguf.h"

namespace flotilla::model {

// Returns a GGUF file without tensors that has every `tokenizer.*` value of `file`, the
// chat template among them, ordered by name. Tokenizer::FromGguf, LoadStopTokens and
// TokenizerHash give the same for this file as for `file`.
std::string TokenizerFile(const GgufFile& file);

}  // namespace flotilla::model
