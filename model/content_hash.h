// Fingerprints of a model file, cheap enough for start-up. They tell whether two processes
// use the same model. They are not a defence against forgery.
#pragma once

#include <cstdint>

#include "model/gguf.h"

namespace flotilla::model {

// XXH64 over everything that decides how text becomes tokens and back: the
// vocabulary, merges, token types, special ids and flags, and the chat template.
uint64_t TokenizerHash(const GgufFile& file);

}  // namespace flotilla::model
