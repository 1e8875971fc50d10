#include "model/text/unicode_form.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "model/text/utf8.h"

namespace flotilla::model {
namespace {

// The longest run of characters that normalisation may reorder and that any script needs. ICU sorts
// such characters by insertion, and 400 KB of accents above and below took it a minute.
constexpr size_t kLongRun = 64;

// Characters that normalisation changes or moves, but that Unicode 9 did not have.
bool HasYoungCharacters(std::string_view text) {
  constexpr uint8_t kFirstByte = 0xdf;  // of U+07FD, which is the first one
  uint8_t highest = 0;
  for (const char c : text) highest = std::max(highest, static_cast<uint8_t>(c));
  if (highest < kFirstByte) return false;
  static const icu::UnicodeSet* const young = [] {
    UErrorCode error = U_ZERO_ERROR;
    auto* set = new icu::UnicodeSet(
        u"[[:^age=9.0:]-[[:nfdinert:]&[:nfcinert:]&[:nfkdinert:]&[:nfkcinert:]]]", error);
    return U_SUCCESS(error) ? set->freeze() : set;
  }();
  const auto size = static_cast<int32_t>(text.size());
  return young->spanUTF8(text.data(), size, USET_SPAN_NOT_CONTAINED) < size;
}

bool IsYoung(UChar32 c) {
  UVersionInfo age;
  u_charAge(c, age);
  return age[0] > 9;
}

struct Mark {
  UChar32 character;
  uint8_t order;  // the character's combining class; 0: it stays where it is
};

// Appends `run` decomposed and in canonical order. NFC gives the same result for it as for
// `run`.
void AppendOrdered(const icu::Normalizer2& nfc, std::string_view run, std::string& out) {
  std::vector<Mark> marks;
  const auto add = [&](UChar32 c) {
    marks.push_back({c, IsYoung(c) ? uint8_t{0} : u_getCombiningClass(c)});
  };
  icu::UnicodeString parts;
  for (size_t at = 0; at < run.size();) {
    const Utf8Part part = ReadUtf8(run, at);
    at += part.bytes;
    const auto character = static_cast<UChar32>(part.code_point);
    if (!IsYoung(character) && nfc.getDecomposition(character, parts)) {
      for (int32_t i = 0; i < parts.length(); i = parts.moveIndex32(i, 1)) add(parts.char32At(i));
    } else {
      add(character);
    }
  }
  const auto stays = [](const Mark& mark) { return mark.order == 0; };
  for (auto begin = marks.begin(); begin != marks.end();) {
    const auto end = std::find_if(begin, marks.end(), stays);
    std::stable_sort(begin, end, [](const Mark& a, const Mark& b) { return a.order < b.order; });
    begin = std::find_if_not(end, marks.end(), stays);
  }
  icu::UnicodeString ordered;
  for (const Mark& mark : marks) ordered.append(mark.character);
  ordered.toUTF8String(out);
}

// Returns `text` with its long runs in canonical order. If there are long runs, `kept` holds
// the result.
std::string_view OrderLongRuns(const icu::Normalizer2& nfc, std::string_view text,
                               std::string& kept) {
  size_t copied = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    size_t characters = 0;
    while (at < text.size() && static_cast<uint8_t>(text[at]) >= 0x80) {
      const Utf8Part part = ReadUtf8(text, at);
      if (nfc.hasBoundaryBefore(static_cast<UChar32>(part.code_point))) break;
      at += part.bytes;
      ++characters;
    }
    if (characters > kLongRun) {
      kept += text.substr(copied, begin - copied);
      AppendOrdered(nfc, text.substr(begin, at - begin), kept);
      copied = at;
    }
    if (at < text.size()) at += ReadUtf8(text, at).bytes;
  }
  if (copied == 0) return text;
  return kept += text.substr(copied);
}

const icu::Normalizer2* Instance(UnicodeForm form, UErrorCode& error) {
  switch (form) {
    case UnicodeForm::kNfc:
      return icu::Normalizer2::getNFCInstance(error);
    case UnicodeForm::kNfd:
      return icu::Normalizer2::getNFDInstance(error);
    case UnicodeForm::kNfkc:
      return icu::Normalizer2::getNFKCInstance(error);
    case UnicodeForm::kNfkd:
      return icu::Normalizer2::getNFKDInstance(error);
  }
  return nullptr;
}

}  // namespace

std::string InForm(UnicodeForm form, std::string_view text) {
  std::string out;
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(error);
  const icu::Normalizer2* wanted = Instance(form, error);
  if (nfc == nullptr || wanted == nullptr || U_FAILURE(error)) return std::string(text);
  // A text in another order of its accents has the same forms.
  std::string kept;
  text = OrderLongRuns(*nfc, text, kept);
  if (HasYoungCharacters(text)) {
    static const icu::UnicodeSet* const old = [] {
      UErrorCode failed = U_ZERO_ERROR;
      auto* set = new icu::UnicodeSet(u"[:age=9.0:]", failed);
      return U_SUCCESS(failed) ? set->freeze() : set;
    }();
    icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
    icu::FilteredNormalizer2(*wanted, *old)
        .normalizeUTF8(0, {text.data(), static_cast<int32_t>(text.size())}, sink, nullptr, error);
    return U_SUCCESS(error) ? out : std::string(text);
  }
  icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
  wanted->normalizeUTF8(0, {text.data(), static_cast<int32_t>(text.size())}, sink, nullptr, error);
  return U_SUCCESS(error) ? out : std::string(text);
}

}  // namespace flotilla::model
