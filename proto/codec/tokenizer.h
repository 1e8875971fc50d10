// Tokenizers on the wire: flotilla.v1.TokenizerBundle.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/types/tokenizer_bundle.h"

namespace flotilla::codec {

// Returns the bytes that travel in v1.TokenizerContent.
std::string WriteTokenizer(const TokenizerBundle& tokenizer);

// INVALID_ARGUMENT, which names the field: the bytes are no such message, there are not as many
// kinds (or scores) as tokens, or an id is not one of the tokens.
absl::StatusOr<TokenizerBundle> ReadTokenizer(std::string_view bytes);

}  // namespace flotilla::codec
