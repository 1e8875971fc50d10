#include "model/text/character_bpe.h"

#include <algorithm>
#include <utility>

#include "common/types/text.h"
#include "model/text/space_mark.h"
#include "model/text/utf8.h"
#include "model/text/vocabulary_trie.h"

namespace flotilla::model {
namespace {

// The code point at `at`, with a space in place of its mark.
Utf8Part ReadCharacter(std::string_view text, size_t at) {
  Utf8Part part = ReadUtf8(text, at);
  if (part.code_point == kSpaceMarkCodePoint) part.code_point = ' ';
  return part;
}

// Where the character that begins at `at` ends.
size_t EndOf(std::string_view text, size_t at) { return at + ReadUtf8(text, at).bytes; }

}  // namespace

std::string WithSpaces(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t mark = std::min(text.find(kSpaceMark, at), text.size());
    result += text.substr(at, mark - at);
    if (mark < text.size()) result += ' ';
    at = mark + kSpaceMark.size();
  }
  return result;
}

absl::StatusOr<CharacterBpe> CharacterBpe::Create(const Vocabulary& vocabulary) {
  CharacterBpe bpe;
  bpe.tokens_ = static_cast<TokenId>(vocabulary.texts.size());
  bpe.bytes_ = vocabulary.bytes;
  bpe.unknown_ = vocabulary.unknown;
  bpe.fuses_unknown_ = vocabulary.fuses_unknown;
  bpe.by_text_.reserve(vocabulary.texts.size());
  for (size_t id = 0; id < vocabulary.texts.size(); ++id) {
    const std::string_view text = vocabulary.texts[id];
    if (text.empty() || FindInvalidUtf8(text) != std::string_view::npos) continue;
    bpe.by_text_.emplace(text, static_cast<TokenId>(id));
    if (EndOf(text, 0) == text.size()) {
      bpe.characters_.emplace(ReadCharacter(text, 0).code_point, static_cast<TokenId>(id));
    }
    const size_t space = text.find(' ', std::min(text.find_first_not_of(' '), text.size()));
    if (space != std::string_view::npos) bpe.cuts_at_spaces_ = false;
  }
  for (const auto& [text, id] : bpe.by_text_) {
    if (!vocabulary.merges.empty()) break;  // rules name tokens only
    for (size_t at = 0; at < text.size(); at = EndOf(text, at)) {
      const Utf8Part part = ReadCharacter(text, at);
      const auto symbol = static_cast<TokenId>(vocabulary.texts.size() + bpe.rare_.size());
      if (bpe.characters_.emplace(part.code_point, symbol).second) {
        bpe.rare_.emplace_back(text.substr(at, part.bytes));
      }
    }
  }
  // Words begin with a space, and are independent of those before them only if this is a token.
  const auto space = bpe.characters_.find(' ');
  if (space == bpe.characters_.end() || space->second >= bpe.tokens_) bpe.cuts_at_spaces_ = false;
  absl::Status status =
      vocabulary.merges.empty() ? bpe.MakeRules(vocabulary) : bpe.ReadRules(vocabulary);
  if (!status.ok()) return status;
  bpe.by_text_ = {};
  return bpe;
}

TokenId CharacterBpe::SymbolOf(std::string_view text) const {
  const auto token = by_text_.find(text);
  if (token != by_text_.end()) return token->second;
  if (text.empty() || EndOf(text, 0) != text.size()) return -1;
  const auto character = characters_.find(ReadCharacter(text, 0).code_point);
  return character == characters_.end() ? -1 : character->second;
}

BpeMerges::Seam CharacterBpe::SeamOf(std::string_view left, std::string_view right) const {
  size_t last = left.size() - 1;
  while ((static_cast<uint8_t>(left[last]) & 0xc0) == 0x80) --last;
  // A rule for a character that is no symbol never applies.
  const auto symbol = [&](std::string_view text, size_t at) {
    const auto found = characters_.find(ReadCharacter(text, at).code_point);
    return found == characters_.end() ? TokenId{-1} : found->second;
  };
  return {symbol(left, last), symbol(right, 0)};
}

absl::Status CharacterBpe::ReadRules(const Vocabulary& vocabulary) {
  merges_.Reserve(vocabulary.merges.size());
  std::string both;
  for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
    const std::string_view rule = vocabulary.merges[rank];
    const size_t space = rule.find(' ');
    if (space == std::string_view::npos || rank > UINT32_MAX) {
      return InvalidArgument("tokenizer: merge rule ", rank, " has no space");
    }
    both = WithSpaces(rule.substr(0, space));
    const size_t left = both.size();
    both += WithSpaces(rule.substr(space + 1));
    const std::string_view joined = both;
    const TokenId result = SymbolOf(joined), first = SymbolOf(joined.substr(0, left)),
                  second = SymbolOf(joined.substr(left));
    if (first < 0 || second < 0 || result < 0 || result >= tokens_) {
      return InvalidArgument("tokenizer: merge rule ", rank,
                             " names a token that is not in the vocabulary");
    }
    merges_.AddMerge(first, second, result, static_cast<uint32_t>(rank),
                     SeamOf(joined.substr(0, left), joined.substr(left)));
  }
  return absl::OkStatus();
}

// The rank of a token is the number of those with a higher score.
absl::Status CharacterBpe::MakeRules(const Vocabulary& vocabulary) {
  const auto score = [&](TokenId id) {
    return vocabulary.scores.empty() ? 0.0 : vocabulary.scores[static_cast<size_t>(id)];
  };
  std::vector<std::pair<TokenId, std::string_view>> tokens;
  for (const auto& [text, id] : by_text_) tokens.emplace_back(id, text);
  std::ranges::sort(tokens, [&](const auto& a, const auto& b) {
    return score(a.first) != score(b.first) ? score(a.first) > score(b.first) : a.first < b.first;
  });
  uint32_t rank = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto& [id, text] = tokens[i];
    // All its cuts are looked at.
    if (text.size() > kMostTokenBytes) {
      return InvalidArgument("tokenizer: token ", id, " has ", text.size(), " bytes, not at most ",
                             kMostTokenBytes);
    }
    if (i > 0 && score(id) != score(tokens[i - 1].first)) rank = static_cast<uint32_t>(i);
    for (size_t cut = EndOf(text, 0); cut < text.size(); cut = EndOf(text, cut)) {
      const TokenId left = SymbolOf(text.substr(0, cut)), right = SymbolOf(text.substr(cut));
      if (left < 0 || right < 0) continue;
      merges_.AddMerge(left, right, id, rank, SeamOf(text.substr(0, cut), text.substr(cut)));
    }
  }
  return absl::OkStatus();
}

void CharacterBpe::Encode(std::string_view text, bool after_space, PieceCache* cache,
                          std::vector<TokenId>& out) const {
  Scratch scratch;
  if (!cuts_at_spaces_) return EncodeWord(text, after_space, scratch, out);
  const auto encode = [&](std::string_view word) {
    if (std::exchange(after_space, false)) return EncodeWord(word, true, scratch, out);
    PieceCache::Append(cache, word, out, [&] { EncodeWord(word, false, scratch, out); });
  };
  // Nothing merges across the end of a word.
  size_t begin = 0;
  bool in_word = false;
  for (size_t at = 0; at < text.size(); at = EndOf(text, at)) {
    const bool space = ReadCharacter(text, at).code_point == ' ';
    if (space && in_word) {
      encode(text.substr(begin, at - begin));
      begin = at;
    }
    in_word = !space;
  }
  encode(text.substr(begin));
}

void CharacterBpe::EncodeWord(std::string_view word, bool after_space, Scratch& scratch,
                              std::vector<TokenId>& out) const {
  std::vector<TokenId>& symbols = scratch.symbols;
  std::vector<std::string_view>& foreign = scratch.foreign;
  symbols.clear();
  foreign.clear();
  // Foreign characters are symbols behind the rare ones.
  const auto first_foreign = tokens_ + static_cast<TokenId>(rare_.size());
  const auto add = [&](uint32_t code_point, std::string_view text) {
    const auto known = characters_.find(code_point);
    if (known != characters_.end()) {
      symbols.push_back(known->second);
    } else if (unknown_ >= 0 || HasBytes(text)) {  // else it vanishes, and its neighbours merge
      symbols.push_back(first_foreign + static_cast<TokenId>(foreign.size()));
      foreign.push_back(text);
    }
  };
  if (after_space) add(' ', " ");
  for (size_t at = 0; at < word.size();) {
    const Utf8Part part = ReadCharacter(word, at);
    add(part.code_point, word.substr(at, part.bytes));
    at += part.bytes;
  }
  merges_.Merge(symbols);
  // An unknown token waits for the next character that has a token. Bytes go in front of it, and do
  // not end it, as in `tokenizers`.
  bool waits = false;
  const auto put_unknown = [&] {
    if (std::exchange(waits, false) && unknown_ >= 0) out.push_back(unknown_);
  };
  for (const TokenId symbol : symbols) {
    if (symbol < tokens_) {
      put_unknown();
      out.push_back(symbol);
      continue;
    }
    const std::string_view character = symbol >= first_foreign
                                           ? foreign[static_cast<size_t>(symbol - first_foreign)]
                                           : rare_[static_cast<size_t>(symbol - tokens_)];
    if (HasBytes(character)) {
      for (const char c : character) out.push_back(bytes_[static_cast<uint8_t>(c)]);
    } else {
      if (!fuses_unknown_) put_unknown();
      waits = true;
    }
  }
  put_unknown();
}

bool CharacterBpe::HasBytes(std::string_view character) const {
  return std::ranges::all_of(character,
                             [&](char c) { return bytes_[static_cast<uint8_t>(c)] >= 0; });
}

}  // namespace flotilla::model
