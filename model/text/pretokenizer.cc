#include "model/text/pretokenizer.h"

#include <unicode/normalizer2.h>

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/types/text.h"
#include "model/text/pattern.h"
#include "model/text/unicode_form.h"
#include "model/text/utf8.h"

namespace flotilla::model {

#define WS FLOTILLA_WHITE_SPACE
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

constexpr size_t kMostPatterns = 16;

}  // namespace

const Pretokenizer::Row Pretokenizer::kRows[] = {
    {.names = "default gpt-2 phi-2 jais exaone4", .patterns = {kGpt2}},
    {.names = "mpt olmo", .patterns = {kGpt2}, .nfc = true},
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

absl::StatusOr<Pretokenizer> Pretokenizer::Create(const TokenizerBundle& bundle) {
  Pretokenizer result;
  if (!bundle.split_patterns.empty()) {
    if (bundle.split_patterns.size() > kMostPatterns) {
      return Unimplemented(bundle.split_patterns.size(), " patterns that split text, not 1..",
                           kMostPatterns);
    }
    for (const std::string& pattern : bundle.split_patterns) {
      auto made = Pattern::Regex(pattern);
      if (!made.ok()) return made.status();
      result.stages_.push_back(*std::move(made));
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
        auto made = Pattern::Pcre2(pattern);
        if (!made.ok()) return absl::InternalError(made.status().message());
        result.stages_.push_back(*std::move(made));
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
  return stages_[stage].Split(text, [&](std::string_view part, bool) -> absl::StatusOr<bool> {
    return stage + 1 == stages_.size() ? piece(part) : SplitBy(stage + 1, part, piece);
  });
}

std::string Pretokenizer::Normalize(std::string_view text) const {
  return nfc_ ? InForm(UnicodeForm::kNfc, text) : std::string(text);
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
