// Everything that turns text into a model's tokens and back, independent of the file that it came
// from: the vocabulary, how words are split and merged, special tokens, the chat template. A worker
// reads it from its model file, and routers get it over the wire (proto/codec/tokenizer.h).
//
// It holds what the file says. Which kinds can be used is known to model/tokenizer.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/types/ids.h"

namespace flotilla {

enum class TokenKind : std::uint8_t {
  kNormal = 1,
  kUnknown,
  kControl,      // recognised only where special tokens are allowed
  kUserDefined,  // recognised everywhere
  kUnused,
  kByte,  // stands for one byte
};

// Where text gets a space in front that it does not have. The parts of a text are what is between
// its added tokens.
enum class SpacePrefix : std::uint8_t {
  kNone,
  kParts,         // of each part
  kPartsWithout,  // of each part that does not begin with one
  kTextWithout,   // of the text, if it begins with neither one nor an added token
};

// Which white space an added token takes with it, and where it counts.
struct AddedTokenRule {
  TokenId id = -1;
  bool strips_left = false;
  bool strips_right = false;
  bool whole_word = false;  // not beside a letter, a digit or '_'

  bool operator==(const AddedTokenRule&) const = default;
};

struct TokenizerBundle {
  // As GGUF names it: "gpt2" is byte-level BPE, "llama" SentencePiece's BPE of characters.
  std::string kind;
  std::string pretokenizer;  // as llama.cpp names it; empty: the file does not say
  // In place of that: regular expressions, each of which splits what the one before left whole
  // into its matches and what is between them.
  std::vector<std::string> split_patterns;
  bool nfc = false;             // with split_patterns: the text is brought to NFC before
  bool ignores_merges = false;  // with split_patterns: a piece that is a token is taken whole
  std::vector<std::string> tokens;
  std::vector<TokenKind> kinds;     // of each token
  std::vector<std::string> merges;  // "left right", the first rule first
  std::vector<float> scores;        // of each token, or empty
  // Ids of special tokens, each a token of the list; -1: none.
  TokenId bos = -1;
  TokenId eos = -1;
  TokenId eot = -1;      // ends a turn
  TokenId eom = -1;      // ends a message
  TokenId unknown = -1;  // stands for text without a token
  // None: the file does not say.
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  SpacePrefix space_prefix = SpacePrefix::kNone;
  std::vector<AddedTokenRule> added_rules;  // of tokens that have any
  std::optional<std::string> chat_template;

  bool operator==(const TokenizerBundle&) const = default;
};

}  // namespace flotilla
