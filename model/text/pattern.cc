#include "model/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/strings/escaping.h"
#include "common/types/text.h"

namespace flotilla::model {
namespace {

#define WS FLOTILLA_WHITE_SPACE

// Backtracking steps for one piece. Our patterns need a few per character, so
// this serves pieces of megabytes and still ends.
constexpr uint32_t kMatchLimit = 50'000'000;

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

struct Pattern::Compiled {
  std::unique_ptr<pcre2_code, FreeCode> code;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> limits;
};

Pattern::Pattern() = default;
Pattern::Pattern(Pattern&&) = default;
Pattern& Pattern::operator=(Pattern&&) = default;
Pattern::~Pattern() = default;

absl::StatusOr<Pattern> Pattern::Pcre2(std::string_view expression) {
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  auto regex = std::make_unique<Compiled>();
  regex->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()),
                                  expression.size(), PCRE2_UTF | PCRE2_UCP, &error, &error_offset,
                                  nullptr));
  if (regex->code == nullptr) {
    return InvalidArgument("the pattern ", Shown(expression), " is no regular expression (PCRE2 ",
                           error, " at ", error_offset, ")");
  }
  // Without JIT support PCRE2 uses its interpreter, at a third of the speed.
  pcre2_jit_compile(regex->code.get(), PCRE2_JIT_COMPLETE);
  regex->limits.reset(pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(regex->limits.get(), kMatchLimit);
  Pattern pattern;
  pattern.regex_ = std::move(regex);
  return pattern;
}

absl::StatusOr<Pattern> Pattern::Regex(std::string_view expression) {
  const auto translated = TranslatePattern(expression);
  if (!translated.ok()) return translated.status();
  return Pcre2(*translated);
}

Pattern Pattern::Text(std::string text) {
  Pattern pattern;
  pattern.text_ = std::move(text);
  return pattern;
}

absl::StatusOr<bool> Pattern::Split(std::string_view text, Part part) const {
  std::unique_ptr<pcre2_match_data, FreeMatchData> match;
  if (regex_ != nullptr) match.reset(pcre2_match_data_create(1, nullptr));
  for (size_t at = 0; at < text.size();) {
    size_t begin = text.size(), end = begin;
    if (regex_ != nullptr) {
      const int matched =
          pcre2_match(regex_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                      at, PCRE2_NO_UTF_CHECK, match.get(), regex_->limits.get());
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
      if (matched != PCRE2_ERROR_NOMATCH) {
        if (matched < 0 || range[1] <= at) {
          return ResourceExhausted("splitting the text stopped at byte ", at, " (PCRE2 ", matched,
                                   ")");
        }
        begin = range[0], end = range[1];
      }
    } else if (const size_t found = text_.empty() ? text.npos : text.find(text_, at);
               found != text.npos) {
      begin = found, end = found + text_.size();
    }
    if (begin > at) {
      const auto more = part(text.substr(at, begin - at), false);
      if (!more.ok() || !*more) return more;
    }
    if (end > begin) {
      const auto more = part(text.substr(begin, end - begin), true);
      if (!more.ok() || !*more) return more;
    }
    at = end;
  }
  return true;
}

}  // namespace flotilla::model
