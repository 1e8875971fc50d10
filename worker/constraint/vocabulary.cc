#include "worker/constraint/vocabulary.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "model/stop_tokens.h"
#include "model/text/tokenizer.h"

namespace flotilla::worker {

absl::StatusOr<ConstraintVocabulary> ReadConstraintVocabulary(const TokenizerBundle& bundle) {
  const absl::StatusOr<model::Tokenizer> tokenizer = model::Tokenizer::Create(bundle);
  if (!tokenizer.ok()) return tokenizer.status();
  ConstraintVocabulary vocabulary{.tokens = std::vector<std::string>(tokenizer->vocab_size()),
                                  .stops = model::StopTokens(bundle)};
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    const TokenKind kind = bundle.kinds[i];
    if (kind == TokenKind::kUnused || kind == TokenKind::kUnknown) continue;
    if (tokenizer->IsSpecial(id)) {
      if (!std::ranges::binary_search(vocabulary.stops, id)) vocabulary.controls.push_back(id);
      continue;
    }
    vocabulary.tokens[i] = std::string(tokenizer->TokenBytes(id));
  }
  return vocabulary;
}

}  // namespace flotilla::worker
