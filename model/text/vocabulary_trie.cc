#include "model/text/vocabulary_trie.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "common/types/text.h"

namespace flotilla::model {
namespace {

constexpr size_t kMostBytes = 16 << 20;  // those of the largest published vocabulary have 3 MB

}  // namespace

absl::StatusOr<Trie> VocabularyTrie(std::span<const std::string_view> texts) {
  std::vector<std::pair<std::string_view, TokenId>> tokens;
  size_t total = 0;
  for (size_t id = 0; id < texts.size(); ++id) {
    if (texts[id].empty()) continue;
    total += texts[id].size();
    if (texts[id].size() > kMostTokenBytes || total > kMostBytes) {
      return Unimplemented("tokenizer: token ", id, " has ", texts[id].size(),
                           " bytes, and with those before it ", total, " (at most ",
                           kMostTokenBytes, " and ", kMostBytes, ")");
    }
    tokens.emplace_back(texts[id], static_cast<TokenId>(id));
  }
  return Trie(std::move(tokens));
}

}  // namespace flotilla::model
