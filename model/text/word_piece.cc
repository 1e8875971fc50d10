#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/types/text.h"
#include "model/text/piece_model.h"
#include "model/text/trie.h"
#include "model/text/vocabulary_trie.h"

namespace flotilla::model {
namespace {

class WordPiece final : public PieceModel {
 public:
  WordPiece(Trie beginnings, Trie rests, const PieceVocabulary& vocabulary)
      : beginnings_(std::move(beginnings)),
        rests_(std::move(rests)),
        guarded_(vocabulary.guarded),
        unknown_(vocabulary.unknown),
        max_characters_(vocabulary.max_word_characters) {}

  void Encode(std::string_view piece, std::vector<TokenId>& out) const override {
    Cut</*kGuarded=*/false>(piece, out);
  }
  void EncodeGuarded(std::string_view piece, std::vector<TokenId>& out) const override {
    Cut</*kGuarded=*/true>(piece, out);
  }

 private:
  template <bool kGuarded>
  void Cut(std::string_view piece, std::vector<TokenId>& out) const {
    const size_t begin = out.size();
    bool known = !TooLong(piece);
    for (size_t at = 0; known && at < piece.size();) {
      size_t longest = 0;
      TokenId token = -1;
      (at == 0 ? beginnings_ : rests_)
          .ForEachPrefix(piece.substr(at), [&](size_t bytes, TokenId id) {
            // A token that ends inside a character is none of this word.
            if (at + bytes < piece.size() &&
                (static_cast<uint8_t>(piece[at + bytes]) & 0xc0) == 0x80) {
              return;
            }
            if constexpr (kGuarded) {
              if (guarded_[static_cast<size_t>(id)]) return;
            }
            longest = bytes;
            token = id;
          });
      known = longest > 0;
      at += longest;
      if (known) out.push_back(token);
    }
    if (known) return;
    out.resize(begin);
    if (unknown_ >= 0) out.push_back(unknown_);
  }

  bool TooLong(std::string_view piece) const {
    size_t characters = 0;
    for (size_t at = 0; at < piece.size() && characters <= max_characters_; ++at) {
      characters += (static_cast<uint8_t>(piece[at]) & 0xc0) != 0x80;
    }
    return characters > max_characters_;
  }

  const Trie beginnings_;  // of words
  const Trie rests_;       // of words, without the prefix of such tokens
  const std::vector<bool> guarded_;
  const TokenId unknown_;
  const size_t max_characters_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const PieceModel>> MakeWordPiece(const PieceVocabulary& vocabulary) {
  std::vector<std::string_view> rests(vocabulary.texts.size());
  for (size_t id = 0; id < rests.size(); ++id) {
    const std::string_view text = vocabulary.texts[id];
    if (text.starts_with(vocabulary.word_prefix)) {
      rests[id] = text.substr(vocabulary.word_prefix.size());
    }
  }
  auto beginnings = VocabularyTrie(vocabulary.texts);
  if (!beginnings.ok()) return beginnings.status();
  auto behind = VocabularyTrie(rests);
  if (!behind.ok()) return behind.status();
  return std::make_unique<WordPiece>(*std::move(beginnings), *std::move(behind), vocabulary);
}

}  // namespace flotilla::model
