// PieceModel: turns one piece of text into tokens. What splits text into pieces is a Splitter.
//
// A model is immutable after creation; any number of threads may encode at once.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/ids.h"

namespace flotilla::model {

class PieceModel {
 public:
  virtual ~PieceModel() = default;

  // Appends the tokens of `piece`, which is valid UTF-8 and not empty.
  virtual void Encode(std::string_view piece, std::vector<TokenId>& out) const = 0;
  // The same, as if the vocabulary had no guarded tokens.
  virtual void EncodeGuarded(std::string_view piece, std::vector<TokenId>& out) const = 0;
};

// What of a vocabulary takes part. The views need not outlive the call.
struct PieceVocabulary {
  std::span<const std::string_view> texts;  // [vocabulary]; empty: the token takes no part
  std::array<TokenId, 256> bytes{};         // the tokens that stand for a byte; -1: none
  std::vector<bool> guarded;       // [texts], or empty: EncodeGuarded does not make these tokens
  TokenId unknown = -1;            // stands for characters without a token; -1: they vanish
  std::span<const double> scores;  // [vocabulary] of Unigram
  bool single_precision = false;   // Unigram adds scores as SentencePiece does
  std::string_view word_prefix;    // of WordPiece's tokens that go on with a word
  size_t max_word_characters = 0;  // of WordPiece: longer words are unknown
};

// Both: UNIMPLEMENTED: a token is longer than 512 bytes, or all are longer than 16 MiB. Encoding
// takes time in proportion to the piece, times the length of the longest token at worst.

// Unigram (arXiv 1804.10959): of all ways to cut a piece into tokens, that with the highest sum of
// scores. A character without a token costs 10 more than the worst token; neighbours of the kind
// are one unknown token, or become bytes if all of them have tokens.
absl::StatusOr<std::unique_ptr<const PieceModel>> MakeUnigram(const PieceVocabulary& vocabulary);

// WordPiece (BERT): the longest token that the rest of a word begins with, again and again. A word
// that does not end so is unknown as a whole.
absl::StatusOr<std::unique_ptr<const PieceModel>> MakeWordPiece(const PieceVocabulary& vocabulary);

}  // namespace flotilla::model
