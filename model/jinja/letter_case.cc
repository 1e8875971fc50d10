#include "model/jinja/letter_case.h"

#include <unicode/casemap.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf16.h>

#include <array>
#include <string>
#include <utility>

#include "model/text/utf8.h"

namespace flotilla::jinja {
namespace {

enum class Case : uint8_t { kKeep, kLower, kUpper, kTitle, kFold };

constexpr uint32_t kCapitalSigma = 0x3a3;
constexpr std::string_view kFinalSigma = "\xcf\x82";

bool IsCased(uint32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED) != 0; }

// Offset of the character that ends before `at`, which is greater than 0.
size_t CharacterBefore(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80);
  return at;
}

// Unicode's Final_Sigma: a capital sigma that ends a word becomes another letter. No character
// before `begin` counts. Each character that a search skips ends a word for no other sigma, so all
// searches together take time in proportion to the text.
bool EndsWord(std::string_view text, size_t begin, size_t at) {
  const auto ignorable = [](uint32_t c) {
    return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASE_IGNORABLE) != 0;
  };
  bool cased = false;
  for (size_t before = at; before > begin;) {
    before = CharacterBefore(text, before);
    const uint32_t c = model::ReadUtf8(text, before).code_point;
    if (ignorable(c)) continue;
    cased = IsCased(c);
    break;
  }
  if (!cased) return false;
  for (size_t after = at + model::ReadUtf8(text, at).bytes; after < text.size();) {
    const model::Utf8Part part = model::ReadUtf8(text, after);
    if (!ignorable(part.code_point)) return !IsCased(part.code_point);
    after += part.bytes;
  }
  return true;
}

char AsciiCased(char c, Case to) {
  const bool lower = c >= 'a' && c <= 'z', upper = c >= 'A' && c <= 'Z';
  if (to == Case::kUpper || to == Case::kTitle) return static_cast<char>(lower ? c - 32 : c);
  return static_cast<char>(upper && to != Case::kKeep ? c + 32 : c);
}

// Appends a character that is not ASCII, which may become several.
void AppendCased(uint32_t c, Case to, std::string& out) {
  std::array<char16_t, 2> source = {};
  int32_t size = 0;
  U16_APPEND_UNSAFE(source, size, c);
  std::array<char16_t, 8> cased = {};  // no character becomes more than three
  const int32_t room = cased.size();
  UErrorCode error = U_ZERO_ERROR;
  int32_t made = 0;
  switch (to) {
    case Case::kKeep:
      cased = {source[0], source[1]};
      made = size;
      break;
    case Case::kLower:
      made = icu::CaseMap::toLower("", 0, source.data(), size, cased.data(), room, nullptr, error);
      break;
    case Case::kUpper:
      made = icu::CaseMap::toUpper("", 0, source.data(), size, cased.data(), room, nullptr, error);
      break;
    case Case::kTitle:
      made =
          icu::CaseMap::toTitle("", U_TITLECASE_WHOLE_STRING | U_TITLECASE_NO_BREAK_ADJUSTMENT,
                                nullptr, source.data(), size, cased.data(), room, nullptr, error);
      break;
    case Case::kFold:
      made = icu::CaseMap::fold(0, source.data(), size, cased.data(), room, nullptr, error);
      break;
  }
  icu::UnicodeString(cased.data(), made).toUTF8String(out);
}

// The text with each character in the case that `choose(character, its offset)` returns. A sigma
// after `word` (which `choose` may move) may end a word.
template <typename Choose>
Text Mapped(Heap& heap, const Text& text, const size_t& word, Choose choose) {
  const std::string_view bytes = text.bytes();
  Text out;
  size_t at = 0;
  uint64_t beyond_ascii = 0;  // characters; each takes as long as some 16 bytes of ASCII
  for (const Text::Run& run : text.runs()) {
    std::string part;
    while (at < run.end) {
      const model::Utf8Part c = model::ReadUtf8(bytes, at);
      const Case to = choose(c.code_point, at);
      if (c.bytes == 1) {
        part += AsciiCased(bytes[at], to);
      } else if (c.kind != model::Utf8Part::Kind::kCharacter) {
        part += bytes.substr(at, c.bytes);
      } else if (++beyond_ascii % 4 == 0 && !heap.Charge(1)) {
        return {};
      } else if (c.code_point == kCapitalSigma && to == Case::kLower && EndsWord(bytes, word, at)) {
        part += kFinalSigma;
      } else {
        AppendCased(c.code_point, to, part);
      }
      at += c.bytes;
    }
    out.Append(part, run.user);
  }
  return out;
}

// As Mapped, with one case for all characters.
Text AllMapped(Heap& heap, const Text& text, Case to) {
  return Mapped(heap, text, 0, [to](uint32_t, size_t) { return to; });
}

bool HasProperty(uint32_t c, UProperty property) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), property) != 0;
}
bool IsLower(uint32_t c) { return HasProperty(c, UCHAR_LOWERCASE); }
bool IsUpper(uint32_t c) { return HasProperty(c, UCHAR_UPPERCASE); }
bool IsTitle(uint32_t c) { return u_istitle(static_cast<UChar32>(c)) != 0; }

int32_t NumericType(uint32_t c) {
  return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE);
}

template <bool wanted(uint32_t), bool other(uint32_t)>
bool IsAllOfCase(std::string_view text) {
  bool found = false;
  for (size_t at = 0; at < text.size();) {
    const model::Utf8Part part = model::ReadUtf8(text, at);
    if (other(part.code_point) || IsTitle(part.code_point)) return false;
    found = found || wanted(part.code_point);
    at += part.bytes;
  }
  return found;
}

}  // namespace

Text Lowered(Heap& heap, const Text& text) { return AllMapped(heap, text, Case::kLower); }
Text Uppered(Heap& heap, const Text& text) { return AllMapped(heap, text, Case::kUpper); }
Text CaseFolded(Heap& heap, const Text& text) { return AllMapped(heap, text, Case::kFold); }

Text SwapCased(Heap& heap, const Text& text) {
  return Mapped(heap, text, 0, [](uint32_t c, size_t) {
    return IsUpper(c) ? Case::kLower : IsLower(c) ? Case::kUpper : Case::kKeep;
  });
}

Text Capitalized(Heap& heap, const Text& text) {
  return Mapped(heap, text, 0,
                [](uint32_t, size_t at) { return at == 0 ? Case::kTitle : Case::kLower; });
}

Text TitleCased(Heap& heap, const Text& text) {
  bool after_cased = false;
  return Mapped(heap, text, 0, [&](uint32_t c, size_t) {
    return std::exchange(after_cased, IsCased(c)) ? Case::kLower : Case::kTitle;
  });
}

Text Titled(Heap& heap, const Text& text) {
  constexpr std::string_view kBefore = "-({[<";
  bool starts = true;
  size_t word = 0;
  return Mapped(heap, text, word, [&](uint32_t c, size_t at) {
    const bool separates =
        IsSpace(c) || (c < 0x80 && kBefore.find(static_cast<char>(c)) != std::string_view::npos);
    const bool rises = std::exchange(starts, separates);
    if (rises) word = at + model::ReadUtf8(text.bytes(), at).bytes;
    return rises ? Case::kUpper : Case::kLower;
  });
}

bool IsSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

bool IsAlpha(uint32_t c) { return u_isalpha(static_cast<UChar32>(c)) != 0; }
bool IsDecimal(uint32_t c) { return NumericType(c) == U_NT_DECIMAL; }
bool IsDigit(uint32_t c) { return IsDecimal(c) || NumericType(c) == U_NT_DIGIT; }
bool IsNumeric(uint32_t c) { return NumericType(c) != U_NT_NONE; }
bool IsAlphanumeric(uint32_t c) { return IsAlpha(c) || IsNumeric(c); }

bool IsPrintable(uint32_t c) {
  constexpr uint32_t kNot = U_GC_C_MASK | U_GC_ZL_MASK | U_GC_ZP_MASK | U_GC_ZS_MASK;
  return c == ' ' || (U_MASK(u_charType(static_cast<UChar32>(c))) & kNot) == 0;
}

bool IsLowerText(std::string_view text) { return IsAllOfCase<IsLower, IsUpper>(text); }
bool IsUpperText(std::string_view text) { return IsAllOfCase<IsUpper, IsLower>(text); }

}  // namespace flotilla::jinja
