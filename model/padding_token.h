// Rows of a table of token vectors that belong to no token. Bundles and GGUF files have unused
// tokens for them, which are named after their ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/types/text.h"
#include "common/types/tokenizer_bundle.h"

namespace flotilla::model {

// The text of the token that stands for row `id`, as llama.cpp's converter writes it.
inline std::string PaddingToken(uint64_t id) { return Cat("[PAD", id, "]"); }

// One more than the largest id of a token, of so many with these texts and kinds, that is no
// padding.
template <class Texts, class Kinds>
uint64_t CountWithoutPadding(const Texts& texts, const Kinds& kinds) {
  uint64_t count = texts.size();
  while (count > 0 && static_cast<TokenKind>(kinds[count - 1]) == TokenKind::kUnused &&
         texts[count - 1] == PaddingToken(count - 1)) {
    --count;
  }
  return count;
}

}  // namespace flotilla::model
