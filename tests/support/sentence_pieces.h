// A small vocabulary of SentencePiece's BPE.
#pragma once

#include <cstdio>
#include <string>
#include <utility>

#include "common/types/ids.h"
#include "common/types/tokenizer_bundle.h"

namespace flotilla::testing {

// The id of the first piece.
inline constexpr TokenId kFirstPiece = 259;

// Three control tokens, the bytes, and pieces: "ab", "aa", "_a", "_", "a", "b" and more, where '_'
// is a space.
inline TokenizerBundle SentencePieces() {
  TokenizerBundle bundle;
  bundle.kind = "llama";
  const auto add = [&](std::string token, TokenKind kind, float score) {
    bundle.tokens.push_back(std::move(token));
    bundle.kinds.push_back(kind);
    bundle.scores.push_back(score);
  };
  add("<unk>", TokenKind::kUnknown, 0);
  add("<s>", TokenKind::kControl, 0);
  add("</s>", TokenKind::kControl, 0);
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    add(text, TokenKind::kByte, 0);
  }
  // Of "aab" the pair with the higher score merges first; "\u00e9" is in a token, but is none.
  const char* const pieces[] = {"ab", "aa", "\u2581a", "\u2581", "a", "b", "x\u00e9", "x", "aaab"};
  for (size_t i = 0; i < sizeof pieces / sizeof *pieces; ++i) {
    add(pieces[i], TokenKind::kNormal, -static_cast<float>(i));
  }
  bundle.unknown = 0;
  bundle.bos = 1;
  bundle.space_prefix = SpacePrefix::kParts;
  return bundle;
}

}  // namespace flotilla::testing
