// A vocabulary for tests of grammars: all bytes, and words of JSON and of the alphabet that overlap
// in many ways.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "absl/types/span.h"
#include "worker/constraint/grammar.h"
#include "worker/constraint/vocabulary.h"

namespace flotilla::worker {

inline ConstraintVocabulary SmallVocabulary() {
  ConstraintVocabulary vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(std::string(1, static_cast<char>(byte)));
  }
  vocabulary.tokens.push_back("");  // 256: a control token
  vocabulary.tokens.push_back("");  // 257: the end
  vocabulary.tokens.push_back("");  // 258: another control token
  vocabulary.controls = {256, 258};
  vocabulary.stops = {257};
  for (const char* word :
       {"ab",       "ba",    "aba",   "bab",          "abc",        "cab",   "aa",       "bb",
        "{\"",      "\":",   "\": ",  "\",",          ", \"",       "\"}",   "}\n",      "true",
        "tr",       "ue",    "false", "null",         "12",         "1.5",   "-1",       "e+",
        "[1",       "],",    "\"a\"", "\"a\":",       "\"a\": \"",  "name",  "\"name\"", "ame\": ",
        "\xc3\xa9", "x\xc3", "\xa9y", "\xe2\x82\xac", "\"\xe2\x82", "\\u00", "\\\"",     "\\n",
        "<f>",      "<f",    "f>",    "</f>",         ">a",         "  ",    " \n",      "\n\n"}) {
    vocabulary.tokens.push_back(word);
  }
  // Longer than what XGrammar looks ahead in repetitions.
  for (const std::size_t length : {20, 40}) vocabulary.tokens.emplace_back(length, 'a');
  return vocabulary;
}

inline TokenId TokenOf(const ConstraintVocabulary& vocabulary, std::string_view bytes) {
  for (std::size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    if (vocabulary.tokens[i] == bytes) return static_cast<TokenId>(i);
  }
  ADD_FAILURE() << "no token has the bytes " << bytes;
  return -1;
}

// A text as the tokens of its bytes.
inline std::vector<TokenId> Bytes(std::string_view text) {
  std::vector<TokenId> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

inline bool Has(absl::Span<const std::uint32_t> mask, TokenId token) {
  return (mask[token / 32] >> token % 32 & 1) != 0;
}

}  // namespace flotilla::worker
