#include "model/text/added_tokens.h"

#include <algorithm>
#include <functional>

#include "model/text/characters.h"
#include "model/text/utf8.h"

namespace flotilla::model {
namespace {

// Where the last character before `at`, which is not 0, begins; the text is UTF-8.
size_t PlaceBefore(std::string_view text, size_t at) {
  do --at;
  while ((static_cast<uint8_t>(text[at]) & 0xc0) == 0x80);
  return at;
}

bool IsWholeWord(std::string_view text, size_t begin, size_t end) {
  const auto is_word = [&](size_t at) { return IsWordCharacter(ReadUtf8(text, at).code_point); };
  return (begin == 0 || !is_word(PlaceBefore(text, begin))) &&
         (end == text.size() || !is_word(end));
}

}  // namespace

void AddedTokens::Add(std::string_view text, TokenId id, bool special, const AddedTokenRule& rule) {
  const auto [entry, added] = tokens_.try_emplace(text, Entry{rule, special});
  if (!added) return;
  entry->second.rule.id = id;
  begins_[static_cast<uint8_t>(text[0])] = true;
  const auto place = std::ranges::lower_bound(sizes_, text.size(), std::greater<>());
  if (place == sizes_.end() || *place != text.size()) sizes_.insert(place, text.size());
}

TokenId AddedTokens::Find(std::string_view text) const {
  const auto found = tokens_.find(text);
  return found == tokens_.end() ? -1 : found->second.rule.id;
}

AddedTokens::Found AddedTokens::LongestAt(std::string_view text, size_t at, size_t end,
                                          bool special_allowed) const {
  for (const size_t size : sizes_) {
    if (size > end - at) continue;
    const auto found = tokens_.find(text.substr(at, size));
    if (found != tokens_.end() && (special_allowed || !found->second.special)) {
      return {&found->second, size};
    }
  }
  return {nullptr, 0};
}

absl::Status AddedTokens::Split(std::string_view text, std::span<const TextRun> runs, Plain plain,
                                Token token) const {
  size_t plain_begin = 0, at = 0;
  for (const TextRun& run : runs) {
    while (true) {
      while (at < run.end && !begins_[static_cast<uint8_t>(text[at])]) ++at;
      if (at >= run.end) break;
      const Found found = LongestAt(text, at, run.end, run.special_allowed);
      if (found.entry == nullptr) {
        ++at;
        continue;
      }
      const AddedTokenRule& rule = found.entry->rule;
      size_t begin = at, end = at + found.size;
      at = end;
      if (rule.whole_word && !IsWholeWord(text, begin, end)) continue;
      if (rule.strips_left) begin = std::max(begin, plain_begin);
      while (rule.strips_left && begin > plain_begin) {
        const size_t before = PlaceBefore(text, begin);
        if (!IsWhiteSpace(ReadUtf8(text, before).code_point)) break;
        begin = before;
      }
      while (rule.strips_right && end < text.size()) {
        const Utf8Part part = ReadUtf8(text, end);
        if (!IsWhiteSpace(part.code_point)) break;
        end += part.bytes;
      }
      if (begin >= end) continue;  // another token took all of it
      absl::Status status;
      if (begin > plain_begin) status = plain(plain_begin, begin);
      if (status.ok()) status = token(rule.id);
      if (!status.ok()) return status;
      plain_begin = end;
    }
  }
  return plain_begin < text.size() ? plain(plain_begin, text.size()) : absl::OkStatus();
}

}  // namespace flotilla::model
