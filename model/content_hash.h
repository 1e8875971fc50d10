// A fingerprint of a tokenizer, cheap enough for start-up. It tells whether two processes use the
// same tokenizer. It is not a defence against forgery.
#pragma once

#include <cstdint>

#include "common/types/tokenizer_bundle.h"

namespace flotilla::model {

// XXH64 over everything that decides how text becomes tokens and back. The value is the same in
// every version of flotilla, since versions meet during an upgrade.
uint64_t TokenizerHash(const TokenizerBundle& tokenizer);

}  // namespace flotilla::model
