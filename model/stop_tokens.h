// The tokens at which a model ends by itself.
#pragma once

#include <vector>

#include "common/types/ids.h"
#include "common/types/tokenizer_bundle.h"

namespace flotilla::model {

// Returns eos, eot, eom, more_ends and the control tokens that are known to end a turn or a text,
// whatever the file's eos says; ascending, each once. gpt-oss' "<|end|>", which ends a message of
// several, is none, even if the file says so.
std::vector<TokenId> StopTokens(const TokenizerBundle& tokenizer);

}  // namespace flotilla::model
