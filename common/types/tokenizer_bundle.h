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

struct TokenizerBundle {
  std::string kind;          // as GGUF names it: "gpt2" is byte-level BPE
  std::string pretokenizer;  // as llama.cpp names it; empty: the file does not say
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
  std::optional<bool> add_space_prefix;
  std::optional<std::string> chat_template;

  bool operator==(const TokenizerBundle&) const = default;
};

}  // namespace flotilla
