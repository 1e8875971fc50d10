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

#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "common/types/text.h"
#include "model/utf8.h"

namespace flotilla::model {

// PCRE2's \s also matches U+180E, but the \s of the reference tokenizers does not, so white
// space is spelled out.
#define WS \
  R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
#define CONTRACTION R"((?:'s|'t|'re|'ve|'m|'ll|'d))"

struct Pretokenizer::Row {
  std::string_view names;  // separated by spaces
  std::vector<std::string_view> patterns;
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

// Letters with their marks.
constexpr std::string_view kQwen35 =
    "(?i:" CONTRACTION ")|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS
    "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS "]+";

#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(end)                                                                           \
  "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" end "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER \
  "*" end "|"
#define AFTER_CASED \
  "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS "]+"

constexpr std::string_view kTekken = CASED("") "\\p{N}" AFTER_CASED;
constexpr std::string_view kGpt4o = CASED("(?i:" CONTRACTION ")?") "\\p{N}{1,3}" AFTER_CASED;

constexpr std::string_view kPunctuation = R"([!-/:-@\[-`{-~\p{P}]+)";
constexpr std::string_view kThreeDigits = "[0-9][0-9][0-9]";
constexpr std::string_view kBloom =
    R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+)";

constexpr std::string_view kChineseAndKana =
    "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+";
constexpr std::string_view kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|[" WS "]+(?![^" WS "])|[" WS "]+";

// The letters with two cases that Unicode had when DeepSeek LLM was made.
#define DEEPSEEK_LETTERS                                                           \
  "[A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"  \
  "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-"   \
  "\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-"    \
  "\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}" \
  "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"   \
  "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"   \
  "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}"   \
  "\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-"    \
  "\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}"    \
  "\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}"   \
  "\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}"     \
  "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-"    \
  "\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}"     \
  "\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}"    \
  "\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}"   \
  "\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}"   \
  "\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-"       \
  "\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"      \
  "\\x{1e900}-\\x{1e943}]"
#define DEEPSEEK_PUNCTUATION \
  "[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]"
constexpr std::string_view kChineseAndKorean =
    "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+";

// Backtracking steps for one piece. Our patterns need a few per character, so
// this serves pieces of megabytes and still ends.
constexpr uint32_t kMatchLimit = 50'000'000;

constexpr size_t kMostPatterns = 16;

std::string Shown(std::string_view text) {
  return Cat("'", absl::CHexEscape(ToAbsl(text.substr(0, 80))), "'");
}

// The pattern of a tokenizer.json, which Oniguruma or Rust's regex would read, for PCRE2. \s and \S
// are spelled out, because PCRE2's differ; what else differs is refused.
absl::StatusOr<std::string> TranslatePattern(std::string_view pattern) {
  constexpr std::string_view kSame = "pPdDrntf";  // with the same meaning everywhere
  std::string out;
  bool in_class = false;
  for (size_t at = 0; at < pattern.size(); ++at) {
    const char c = pattern[at];
    if (c != '\\') {
      if (c == '[' && in_class) {
        return Unimplemented("the pattern ", Shown(pattern), " has a class in a class");
      }
      in_class = c == '[' || (in_class && c != ']');
      out += c;
      continue;
    }
    if (++at == pattern.size()) {
      return InvalidArgument("the pattern ", Shown(pattern), " ends with a backslash");
    }
    const char next = pattern[at];
    const bool letter = (next >= 'a' && next <= 'z') || (next >= 'A' && next <= 'Z');
    if (next == 's') {
      out += in_class ? WS : "[" WS "]";
    } else if (next == 'S' && !in_class) {
      out += "[^" WS "]";
    } else if ((letter && kSame.find(next) == std::string_view::npos) ||
               (next >= '0' && next <= '9')) {
      return Unimplemented("the pattern ", Shown(pattern), " has \\", std::string_view(&next, 1));
    } else {
      out += c;
      out += next;
    }
  }
  return out;
}

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
    {.names = "default gpt-2 phi-2 mpt olmo jais exaone4", .patterns = {kGpt2}},
    {.names = "smollm starcoder refact codeshell exaone minerva-7b", .patterns = {kSmolLm}},
    {.names = "command-r", .patterns = {kSmolLm}, .nfc = true},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral",
     .patterns = {kLlama3},
     .ignores_merges = true,
     .adds_bos = true},
    {.names = "dbrx smaug-bpe chatglm-bpe", .patterns = {kLlama3}},
    {.names = "glm4", .patterns = {kLlama3}, .ignores_merges = true},
    {.names = "qwen2 stablelm2 deepseek-r1-qwen", .patterns = {kQwen2}, .nfc = true},
    {.names = "qwen35", .patterns = {kQwen35}},
    {.names = "tekken", .patterns = {kTekken}, .ignores_merges = true, .adds_bos = true},
    {.names = "gpt-4o llama4", .patterns = {kGpt4o}},
    {.names = "falcon", .patterns = {kPunctuation, kGpt2, kThreeDigits}},
    {.names = "bloom poro-chat gpt3-finnish", .patterns = {kBloom}},
    {.names = "deepseek-v3", .patterns = {"\\p{N}{1,3}", kChineseAndKana, kDeepSeek3}},
    {.names = "deepseek-coder",
     .patterns = {"[\\r\\n]", "[" WS "]?\\p{L}+", "[" WS "]?\\p{P}+", kChineseAndKorean, "\\p{N}"}},
    {.names = "deepseek-llm",
     .patterns = {"[\\r\\n]", "[" WS "]?" DEEPSEEK_LETTERS "+",
                  "[" WS "]?" DEEPSEEK_PUNCTUATION "+", "[" WS "]+$", kChineseAndKorean,
                  "\\p{N}+"}},
};

struct Pretokenizer::Regex {
  std::unique_ptr<pcre2_code, FreeCode> code;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> limits;

  // The error of PCRE2, 0 if there is none, and where.
  static std::pair<int, size_t> Compile(std::string_view pattern,
                                        std::unique_ptr<const Regex>& out) {
    int error = 0;
    PCRE2_SIZE error_offset = 0;
    auto regex = std::make_unique<Regex>();
    regex->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                    PCRE2_UTF | PCRE2_UCP, &error, &error_offset, nullptr));
    if (regex->code == nullptr) return {error, error_offset};
    // Without JIT support PCRE2 uses its interpreter, at a third of the speed.
    pcre2_jit_compile(regex->code.get(), PCRE2_JIT_COMPLETE);
    regex->limits.reset(pcre2_match_context_create(nullptr));
    pcre2_set_match_limit(regex->limits.get(), kMatchLimit);
    out = std::move(regex);
    return {0, 0};
  }
};

Pretokenizer::Pretokenizer() = default;
Pretokenizer::Pretokenizer(Pretokenizer&&) = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) = default;
Pretokenizer::~Pretokenizer() = default;

absl::StatusOr<Pretokenizer> Pretokenizer::Create(const TokenizerBundle& bundle) {
  Pretokenizer result;
  if (!bundle.split_patterns.empty()) {
    if (bundle.split_patterns.size() > kMostPatterns) {
      return Unimplemented(bundle.split_patterns.size(), " patterns that split text, not 1..",
                           kMostPatterns);
    }
    for (const std::string& pattern : bundle.split_patterns) {
      const auto translated = TranslatePattern(pattern);
      if (!translated.ok()) return translated.status();
      const auto [error, at] = Regex::Compile(*translated, result.stages_.emplace_back());
      if (error == 0) continue;
      return InvalidArgument("the pattern ", Shown(pattern), " is no regular expression (PCRE2 ",
                             error, " at ", at, ")");
    }
    result.ignores_merges_ = bundle.ignores_merges;
    result.nfc_ = bundle.nfc;
    return result;
  }
  const std::string_view pre =
      bundle.pretokenizer.empty() ? std::string_view("default") : bundle.pretokenizer;
  std::string known;
  for (const Row& row : kRows) {
    for (const absl::string_view name : absl::StrSplit(ToAbsl(row.names), ' ')) {
      known += Cat(known.empty() ? "" : ", ", std::string_view(name.data(), name.size()));
      if (pre != std::string_view(name.data(), name.size())) continue;
      for (const std::string_view pattern : row.patterns) {
        const auto [error, at] = Regex::Compile(pattern, result.stages_.emplace_back());
        if (error != 0) {
          return absl::InternalError(Cat("pattern of ", pre, ": PCRE2 error ", error, " at ", at));
        }
      }
      result.ignores_merges_ = row.ignores_merges;
      result.adds_bos_ = row.adds_bos;
      result.nfc_ = row.nfc;
      return result;
    }
  }
  return Unimplemented("pre-tokenizer '", pre.substr(0, 64),
                       "' is not supported; supported: ", known);
}

absl::Status Pretokenizer::Split(std::string_view text,
                                 absl::FunctionRef<bool(std::string_view)> piece) const {
  return SplitBy(0, text, piece).status();
}

absl::StatusOr<bool> Pretokenizer::SplitBy(size_t stage, std::string_view text,
                                           absl::FunctionRef<bool(std::string_view)> piece) const {
  const Regex& regex = *stages_[stage];
  const auto take = [&](std::string_view part) -> absl::StatusOr<bool> {
    return stage + 1 == stages_.size() ? piece(part) : SplitBy(stage + 1, part, piece);
  };
  const std::unique_ptr<pcre2_match_data, FreeMatchData> match(pcre2_match_data_create(1, nullptr));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
  for (size_t at = 0; at < text.size();) {
    const int matched =
        pcre2_match(regex.code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                    PCRE2_NO_UTF_CHECK, match.get(), regex.limits.get());
    if (matched == PCRE2_ERROR_NOMATCH) return take(text.substr(at));
    if (matched < 0 || range[1] <= at) {
      return ResourceExhausted("splitting the text stopped at byte ", at, " (PCRE2 ", matched, ")");
    }
    if (range[0] > at) {
      const auto more = take(text.substr(at, range[0] - at));
      if (!more.ok() || !*more) return more;
    }
    const auto more = take(text.substr(range[0], range[1] - range[0]));
    if (!more.ok() || !*more) return more;
    at = range[1];
  }
  return true;
}

std::string Pretokenizer::Normalize(std::string_view text) const {
  std::string out;
  UErrorCode error = U_ZERO_ERROR;
  if (const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(error);
      nfc_ && U_SUCCESS(error)) {
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

bool Pretokenizer::normalizes() const { return nfc_; }
bool Pretokenizer::ignores_merges() const { return ignores_merges_; }
bool Pretokenizer::adds_bos_by_default() const { return adds_bos_; }

}  // namespace flotilla::model
