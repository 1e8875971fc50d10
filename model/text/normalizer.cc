#include "model/text/normalizer.h"

#include <unicode/brkiter.h>
#include <unicode/uchar.h>
#include <unicode/utext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "common/types/text.h"
#include "model/text/character_map.h"
#include "model/text/characters.h"
#include "model/text/pattern.h"
#include "model/text/space_mark.h"
#include "model/text/unicode_form.h"
#include "model/text/utf8.h"

namespace flotilla::model {
namespace {

using Kind = TextStep::Kind;

constexpr size_t kMostNormalizers = 16;
constexpr size_t kMostStepText = 256;  // bytes of what is put in; published ones have at most 3

bool IsAscii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

void Append(uint32_t code_point, std::string& out) {
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
    return;
  }
  if (code_point >= 0x10000) {
    out += static_cast<char>(0xf0 | code_point >> 18);
    out += static_cast<char>(0x80 | (code_point >> 12 & 0x3f));
  } else if (code_point >= 0x800) {
    out += static_cast<char>(0xe0 | code_point >> 12);
  } else {
    out += static_cast<char>(0xc0 | code_point >> 6);
  }
  if (code_point >= 0x800) out += static_cast<char>(0x80 | (code_point >> 6 & 0x3f));
  out += static_cast<char>(0x80 | (code_point & 0x3f));
}

// Puts what `change` appends for each character in place of the text. Returns whether the first
// character became something.
template <class Change>
bool MapCharacters(std::string& text, const Change& change) {
  std::string out;
  bool keeps_begin = true;
  out.reserve(text.size() + text.size() / 8);
  for (size_t at = 0; at < text.size();) {
    const Utf8Part part = ReadUtf8(text, at);
    change(part.code_point, out);
    if (at == 0) keeps_begin = !out.empty();
    at += part.bytes;
  }
  text = std::move(out);
  return keeps_begin;
}

// The lower-case form of a character alone: no context counts.
void AppendLower(uint32_t c, std::string& out) {
  if (c == 0x130) return void(out += "i\xcc\x87");  // the only one with two characters
  Append(static_cast<uint32_t>(u_tolower(static_cast<UChar32>(c))), out);
}

void Lower(std::string& text) {
  if (!IsAscii(text)) {
    MapCharacters(text, AppendLower);
    return;
  }
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
}

bool IsChinese(uint32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
         (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
         (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

// The category of a character as a mask; 0 if it is younger than Unicode `version`, whose tables
// the reference tokenizers have.
uint32_t CategoriesOf(uint32_t c, uint8_t version) {
  UVersionInfo age;
  u_charAge(static_cast<UChar32>(c), age);
  return age[0] > version ? 0 : U_GET_GC_MASK(static_cast<UChar32>(c));
}

// Some characters have got another category since.
bool IsNonspacingMark(uint32_t c) {
  if (c == 0x1885 || c == 0x1886 || c == 0xa9bd || c == 0x111c9) return false;
  return c == 0x1734 || (CategoriesOf(c, 8) & U_GC_MN_MASK) != 0;
}
bool IsMark(uint32_t c) {
  if (c == 0x111c9) return false;
  return c == 0x1cf2 || c == 0x1cf3 || (CategoriesOf(c, 9) & U_GC_M_MASK) != 0;
}

// Control characters as BERT's tokenizer counts them.
bool IsControl(uint32_t c) {
  constexpr uint32_t kOther = U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK | U_GC_CS_MASK;
  return c != '\t' && c != '\n' && c != '\r' && (CategoriesOf(c, 8) & kOther) != 0;
}

void Clean(uint32_t c, std::string& out) {
  if (c == 0 || c == 0xfffd || IsControl(c)) return;
  Append(IsWhiteSpace(c) ? ' ' : c, out);
}

bool BertAscii(const TextStep& step, std::string& text) {
  bool keeps_begin = true;
  size_t size = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    char kept = c;
    if (step.has(TextStep::kCleanText)) {
      if (c == '\t' || c == '\n' || c == '\r') {
        kept = ' ';
      } else if (byte < 0x20 || byte == 0x7f) {
        keeps_begin = keeps_begin && &c != text.data();
        continue;
      }
    }
    if (step.has(TextStep::kLower) && kept >= 'A' && kept <= 'Z') kept |= 0x20;
    text[size++] = kept;
  }
  text.resize(size);
  return keeps_begin;
}

bool Bert(const TextStep& step, std::string& text) {
  if (IsAscii(text)) return BertAscii(step, text);
  bool keeps_begin = !step.has(TextStep::kCleanText) || MapCharacters(text, Clean);
  if (step.has(TextStep::kChinese)) {
    MapCharacters(text, [](uint32_t c, std::string& out) {
      if (!IsChinese(c)) return Append(c, out);
      out += ' ';
      Append(c, out);
      out += ' ';
    });
  }
  if (step.has(TextStep::kAccents)) {
    text = InForm(UnicodeForm::kNfd, text);
    const bool keeps = MapCharacters(text, [](uint32_t c, std::string& out) {
      if (!IsNonspacingMark(c)) Append(c, out);
    });
    keeps_begin = keeps_begin && keeps;
  }
  if (step.has(TextStep::kLower)) Lower(text);
  return keeps_begin;
}

void Nmt(uint32_t c, std::string& out) {
  if ((c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f ||
      c == 0x9f) {
    return;
  }
  const bool space = c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
                     (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                     c == 0xfeff || c == 0xfffd;
  Append(space ? ' ' : c, out);
}

bool StripSpaces(const TextStep& step, std::string& text) {
  size_t begin = 0, end = text.size();
  while (step.has(TextStep::kLeft) && begin < end) {
    const Utf8Part part = ReadUtf8(text, begin);
    if (!IsWhiteSpace(part.code_point)) break;
    begin += part.bytes;
  }
  while (step.has(TextStep::kRight) && end > begin) {
    size_t last = end - 1;
    while ((static_cast<uint8_t>(text[last]) & 0xc0) == 0x80) --last;
    if (!IsWhiteSpace(ReadUtf8(text, last).code_point)) break;
    end = last;
  }
  text = text.substr(begin, end - begin);
  return begin == 0;
}

// What SentencePiece does with white space, which is one character here.
void SpacesOfSentencePiece(const TextStep& step, std::string& text) {
  std::string out;
  const bool removes = step.has(TextStep::kExtraSpaces);
  bool after_space = removes;
  bool begins = true;
  const auto begin = [&] {
    if (std::exchange(begins, false) && step.has(TextStep::kSpaceFirst)) out += kSpaceMark;
  };
  if (!removes && !text.empty()) begin();
  for (const char c : text) {
    if (c != ' ') {
      begin();
      out += c;
    } else if (!after_space) {
      out += kSpaceMark;
    }
    after_space = removes && c == ' ';
  }
  while (removes && out.ends_with(kSpaceMark)) out.resize(out.size() - kSpaceMark.size());
  if (step.has(TextStep::kSpaceBehind) && !out.empty()) out += kSpaceMark;
  text = std::move(out);
}

struct CloseText {
  void operator()(UText* text) const { utext_close(text); }
};

}  // namespace

struct Normalizer::Step {
  TextStep step;
  std::optional<Pattern> pattern;  // of Replace
  std::optional<CharacterMap> map;

  absl::Status Apply(std::string& text, size_t most, bool& keeps_begin) const;
  absl::Status Replace(std::string& text, size_t most, bool& keeps_begin) const;
  absl::Status MapAll(std::string& text, size_t most) const;
  absl::Status MapGraphemes(std::string& text, size_t most) const;
  void MapOne(std::string_view part, std::string& out) const {
    const auto match = map->Find(part, /*longest=*/false);
    out += match.has_value() ? match->text : part;
  }
};

namespace {

absl::Status TooLong(size_t most) {
  return ResourceExhausted("normalising makes the text longer than ", most, " bytes");
}

}  // namespace

absl::Status Normalizer::Step::Replace(std::string& text, size_t most, bool& keeps_begin) const {
  std::string out;
  const auto all =
      pattern->Split(text, [&](std::string_view part, bool matches) -> absl::StatusOr<bool> {
        out += matches ? std::string_view(step.text) : part;
        if (part.data() == text.data()) keeps_begin = !out.empty();
        if (out.size() > most) return TooLong(most);
        return true;
      });
  text = std::move(out);
  return all.status();
}

absl::Status Normalizer::Step::MapAll(std::string& text, size_t most) const {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto match = map->Find(std::string_view(text).substr(at), /*longest=*/true);
    const size_t bytes = match.has_value() ? match->bytes : ReadUtf8(text, at).bytes;
    out += match.has_value() ? match->text : std::string_view(text).substr(at, bytes);
    at += bytes;
    if (out.size() > most) return TooLong(most);
  }
  text = std::move(out);
  return absl::OkStatus();
}

// Of a user-perceived character of less than 6 bytes the shortest match at its beginning stands for
// all of it; in longer ones each character is replaced by itself. That is what `tokenizers` does.
absl::Status Normalizer::Step::MapGraphemes(std::string& text, size_t most) const {
  std::string out;
  if (IsAscii(text) && std::ranges::all_of(text, [&](char c) { return map->keeps(c); })) {
    return absl::OkStatus();
  }
  UErrorCode error = U_ZERO_ERROR;
  UText opened = UTEXT_INITIALIZER;
  const std::unique_ptr<UText, CloseText> view(
      utext_openUTF8(&opened, text.data(), static_cast<int64_t>(text.size()), &error));
  const std::unique_ptr<icu::BreakIterator> breaks(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), error));
  if (U_SUCCESS(error)) breaks->setText(view.get(), error);
  if (U_FAILURE(error)) return absl::InternalError("ICU has no rules for characters");
  size_t begin = 0;
  for (int32_t next = breaks->next(); next != icu::BreakIterator::DONE; next = breaks->next()) {
    const std::string_view grapheme =
        std::string_view(text).substr(begin, static_cast<size_t>(next) - begin);
    begin = static_cast<size_t>(next);
    if (const auto whole = map->Find(grapheme, /*longest=*/false);
        grapheme.size() < 6 && whole.has_value()) {
      out += whole->text;
    } else {
      for (size_t at = 0; at < grapheme.size();) {
        const size_t bytes = ReadUtf8(grapheme, at).bytes;
        MapOne(grapheme.substr(at, bytes), out);
        at += bytes;
        if (out.size() > most) return TooLong(most);
      }
    }
    if (out.size() > most) return TooLong(most);
  }
  text = std::move(out);
  return absl::OkStatus();
}

absl::Status Normalizer::Step::Apply(std::string& text, size_t most, bool& keeps_begin) const {
  switch (step.kind) {
    case Kind::kNfc:
    case Kind::kNfd:
    case Kind::kNfkc:
    case Kind::kNfkd:
      if (!IsAscii(text)) {
        text = InForm(
            static_cast<UnicodeForm>(static_cast<int>(step.kind) - static_cast<int>(Kind::kNfc)),
            text);
      }
      break;
    case Kind::kLowercase:
      Lower(text);
      break;
    case Kind::kStripAccents:
      if (!IsAscii(text)) {
        keeps_begin = MapCharacters(text, [](uint32_t c, std::string& out) {
          if (!IsMark(c)) Append(c, out);
        });
      }
      break;
    case Kind::kNmt:
      keeps_begin = MapCharacters(text, Nmt);
      break;
    case Kind::kBertNormalizer:
      keeps_begin = Bert(step, text);
      break;
    case Kind::kPrecompiled:
      return step.has(TextStep::kLongest) ? MapAll(text, most) : MapGraphemes(text, most);
    case Kind::kSentencePiece:
      SpacesOfSentencePiece(step, text);
      break;
    case Kind::kPrepend:
      if (!text.empty()) text.insert(0, step.text);
      break;
    case Kind::kReplace:
      return Replace(text, most, keeps_begin);
    case Kind::kStrip:
      keeps_begin = StripSpaces(step, text);
      break;
    default:
      break;
  }
  return text.size() > most ? TooLong(most) : absl::OkStatus();
}

Normalizer::Normalizer() = default;
Normalizer::Normalizer(Normalizer&&) = default;
Normalizer& Normalizer::operator=(Normalizer&&) = default;
Normalizer::~Normalizer() = default;

absl::StatusOr<Normalizer> Normalizer::Create(std::span<const TextStep> steps) {
  if (steps.size() > kMostNormalizers) {
    return Unimplemented("a normalizer of ", steps.size(), " steps, not at most ",
                         kMostNormalizers);
  }
  Normalizer normalizer;
  for (const TextStep& step : steps) {
    if (step.kind > Kind::kStrip) return Unimplemented("a normalizer that does not change text");
    Step made{.step = step};
    if (step.kind == Kind::kPrecompiled) {
      auto map = CharacterMap::Create(step.text);
      if (!map.ok()) return map.status();
      made.map = *std::move(map);
      made.step.text.clear();
    } else if (step.text.size() > kMostStepText) {
      return Unimplemented("a normalizer that puts ", step.text.size(), " bytes, not at most ",
                           kMostStepText);
    }
    if (FindInvalidUtf8(made.step.text) != std::string::npos) {
      return InvalidArgument("a normalizer puts text that is not UTF-8");
    }
    if (step.kind == Kind::kReplace) {
      auto pattern = step.has(TextStep::kRegex)
                         ? Pattern::Regex(step.pattern)
                         : absl::StatusOr<Pattern>(Pattern::Text(step.pattern));
      if (!pattern.ok()) return pattern.status();
      made.pattern = *std::move(pattern);
    }
    normalizer.steps_.push_back(std::move(made));
  }
  return normalizer;
}

bool Normalizer::empty() const { return steps_.empty(); }

absl::Status Normalizer::Apply(std::string& text, bool& keeps_begin) const {
  const size_t most = 32 * text.size() + 4096;
  keeps_begin = true;
  for (const Step& step : steps_) {
    bool keeps = true;
    if (absl::Status status = step.Apply(text, most, keeps); !status.ok()) return status;
    keeps_begin = keeps_begin && keeps;
  }
  return absl::OkStatus();
}

}  // namespace flotilla::model
