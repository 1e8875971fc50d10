#include "model/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "common/types/text.h"
#include "model/utf8.h"

namespace flotilla::model {

// PCRE2's \s also matches U+180E, but the \s of the reference tokenizers does not, so white
// space is spelled out.
#define WS \
  R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
#define CONTRACTION R"((?:'s|'t|'re|'ve|'m|'ll|'d))"

struct Pretokenizer::Row {
  std::string_view name;
  std::string_view pattern;
  bool ignores_merges = false;
  bool adds_bos = false;
  bool nfc = false;
};

namespace {

constexpr std::string_view kGpt2 =
    CONTRACTION "| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|[" WS "]+(?![^" WS "])|[" WS "]+";

// Takes every digit alone, and splits the text between digits as GPT-2 does. There a digit
// ends the text, hence \p{N} in the look-ahead.
constexpr std::string_view kSmolLm =
    CONTRACTION "| ?\\p{L}+|\\p{N}| ?[^" WS "\\p{L}\\p{N}]+|[" WS "]+(?![^" WS "\\p{N}])|[" WS "]+";

#define LLAMA3_BEFORE_DIGITS "(?i:" CONTRACTION ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define LLAMA3_AFTER_DIGITS \
  "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS "]+"

constexpr std::string_view kLlama3 = LLAMA3_BEFORE_DIGITS "\\p{N}{1,3}" LLAMA3_AFTER_DIGITS;
constexpr std::string_view kQwen2 = LLAMA3_BEFORE_DIGITS "\\p{N}" LLAMA3_AFTER_DIGITS;

// Backtracking steps for one piece. Our patterns need a few per character, so
// this serves pieces of megabytes and still ends.
constexpr uint32_t kMatchLimit = 50'000'000;

// The longest run of characters that normalisation may reorder and that any script needs. ICU sorts
// such characters by insertion, and 400 KB of accents above and below took it a minute.
constexpr size_t kLongRun = 64;

struct Mark {
  UChar32 character;
  uint8_t order;  // the character's combining class; 0: it stays where it is
};

// Appends `run` decomposed and in canonical order. NFC gives the same result for it as for
// `run`.
void AppendOrdered(const icu::Normalizer2& nfc, std::string_view run, std::string& out) {
  std::vector<Mark> marks;
  const auto add = [&](UChar32 c) { marks.push_back({c, u_getCombiningClass(c)}); };
  icu::UnicodeString parts;
  for (size_t at = 0; at < run.size();) {
    const Utf8Part part = ReadUtf8(run, at);
    at += part.bytes;
    const auto character = static_cast<UChar32>(part.code_point);
    if (nfc.getDecomposition(character, parts)) {
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

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};

}  // namespace

const Pretokenizer::Row Pretokenizer::kRows[] = {
    {.name = "default", .pattern = kGpt2},
    {.name = "gpt-2", .pattern = kGpt2},
    {.name = "smollm", .pattern = kSmolLm},
    {.name = "llama-bpe", .pattern = kLlama3, .ignores_merges = true, .adds_bos = true},
    {.name = "qwen2", .pattern = kQwen2, .nfc = true},
};

struct Pretokenizer::Regex {
  std::unique_ptr<pcre2_code, FreeCode> code;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> limits;
};

Pretokenizer::Pretokenizer(const Row* row, std::unique_ptr<const Regex> regex)
    : row_(row), regex_(std::move(regex)) {}

Pretokenizer::Pretokenizer(Pretokenizer&&) = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) = default;
Pretokenizer::~Pretokenizer() = default;

absl::StatusOr<Pretokenizer> Pretokenizer::Create(std::string_view pre) {
  const Row* row = std::ranges::find(kRows, pre, &Row::name);
  if (row == std::end(kRows)) {
    std::string known;
    for (const Row& each : kRows) known += Cat(known.empty() ? "" : ", ", each.name);
    return Unimplemented("pre-tokenizer '", pre.substr(0, 64),
                         "' is not supported; supported: ", known);
  }
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  auto regex = std::make_unique<Regex>();
  regex->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(row->pattern.data()),
                                  row->pattern.size(), PCRE2_UTF | PCRE2_UCP, &error, &error_offset,
                                  nullptr));
  if (regex->code == nullptr) {
    return absl::InternalError(
        Cat("pattern of ", row->name, ": PCRE2 error ", error, " at ", error_offset));
  }
  // Without JIT support PCRE2 uses its interpreter, at a third of the speed.
  pcre2_jit_compile(regex->code.get(), PCRE2_JIT_COMPLETE);
  regex->limits.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(regex->limits.get(), kMatchLimit);
  return Pretokenizer(row, std::move(regex));
}

absl::Status Pretokenizer::Split(std::string_view text,
                                 absl::FunctionRef<bool(std::string_view)> piece) const {
  const std::unique_ptr<pcre2_match_data, FreeMatchData> match(pcre2_match_data_create(1, nullptr));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
  for (size_t at = 0; at < text.size();) {
    const int matched =
        pcre2_match(regex_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                    PCRE2_NO_UTF_CHECK, match.get(), regex_->limits.get());
    if (matched == PCRE2_ERROR_NOMATCH) {
      piece(text.substr(at));
      break;
    }
    if (matched < 0 || range[1] <= at) {
      return ResourceExhausted("splitting the text stopped at byte ", at, " (PCRE2 ", matched, ")");
    }
    if (range[0] > at && !piece(text.substr(at, range[0] - at))) break;
    if (!piece(text.substr(range[0], range[1] - range[0]))) break;
    at = range[1];
  }
  return absl::OkStatus();
}

std::string Pretokenizer::Normalize(std::string_view text) const {
  std::string out;
  UErrorCode error = U_ZERO_ERROR;
  if (const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(error);
      row_->nfc && U_SUCCESS(error)) {
    std::string kept;
    text = OrderLongRuns(*nfc, text, kept);
    icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
    nfc->normalizeUTF8(0, {text.data(), static_cast<int32_t>(text.size())}, sink, nullptr, error);
    if (U_SUCCESS(error)) return out;
  }
  return std::string(text);
}

size_t Pretokenizer::NormalizationCut(std::string_view text, size_t at) const {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(error);
  if (U_FAILURE(error)) return text.size();
  while (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80) ++at;
  while (at < text.size()) {
    const Utf8Part part = ReadUtf8(text, at);
    if (nfc->hasBoundaryBefore(static_cast<UChar32>(part.code_point))) break;
    at += part.bytes;
  }
  return std::min(at, text.size());
}

bool Pretokenizer::normalizes() const { return row_->nfc; }
bool Pretokenizer::ignores_merges() const { return row_->ignores_merges; }
bool Pretokenizer::adds_bos_by_default() const { return row_->adds_bos; }

}  // namespace flotilla::model
