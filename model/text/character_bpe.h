// CharacterBpe: byte-pair merging of characters, for the vocabularies of SentencePiece ("llama" in
// GGUF files, BPE with byte_fallback in Hugging Face's). A space is a character like others; files
// write it as U+2581.
//
// It is built once and then only read; any thread may encode.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/types/ids.h"
#include "common/types/text.h"
#include "model/text/bpe.h"
#include "model/text/piece_cache.h"

namespace flotilla::model {

// The text with spaces in place of U+2581.
std::string WithSpaces(std::string_view text);

class CharacterBpe {
 public:
  // What of a vocabulary takes part.
  struct Vocabulary {
    // The text of each token, with spaces as such; empty: the token takes no part. They must
    // outlive Create.
    std::vector<std::string_view> texts;
    std::array<TokenId, 256> bytes{};  // the tokens that stand for a byte; -1: none
    TokenId unknown = -1;              // stands for characters without a token; -1: they vanish
    // The rules "left right" as the file writes them, the first one goes first. Without rules the
    // neighbours merge whose token has the highest score.
    std::span<const std::string> merges;
    std::span<const double> scores;  // [texts], or empty: all are alike
    bool fuses_unknown = true;       // unknown characters that follow each other are one token
  };
  // INVALID_ARGUMENT: a rule names a token that does not exist.
  static absl::StatusOr<CharacterBpe> Create(const Vocabulary& vocabulary);

  // Appends the tokens of `text`, which is UTF-8, or of a space and the text. `cache`: of words;
  // may be null.
  void Encode(std::string_view text, bool after_space, PieceCache* cache,
              std::vector<TokenId>& out) const;

 private:
  CharacterBpe() = default;

  absl::Status ReadRules(const Vocabulary& vocabulary);
  absl::Status MakeRules(const Vocabulary& vocabulary);
  // The symbol of text that is a token or one character; -1: it is neither.
  TokenId SymbolOf(std::string_view text) const;
  // The seam of two texts that symbols stand for.
  BpeMerges::Seam SeamOf(std::string_view left, std::string_view right) const;
  // What the words of a text use one after the other.
  struct Scratch {
    std::vector<TokenId> symbols;
    std::vector<std::string_view> foreign;  // characters that no token has
  };
  void EncodeWord(std::string_view word, bool after_space, Scratch& scratch,
                  std::vector<TokenId>& out) const;
  // Whether all bytes of a character have tokens.
  bool HasBytes(std::string_view character) const;

  TokenId tokens_ = 0;                                 // symbols from here on are rare characters
  absl::flat_hash_map<uint32_t, TokenId> characters_;  // code point -> symbol
  std::vector<std::string> rare_;                      // characters of tokens that are no tokens
  // Of the vocabulary, while rules are made.
  absl::flat_hash_map<std::string_view, TokenId, TextHash, TextEqual> by_text_;
  std::array<TokenId, 256> bytes_{};
  TokenId unknown_ = -1;
  bool fuses_unknown_ = true;
  BpeMerges merges_;
  // A space is a token, and no token has one behind another character.
  bool cuts_at_spaces_ = true;
};

}  // namespace flotilla::model
