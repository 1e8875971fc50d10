#include "model/jinja/lexer.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

#include "common/types/text.h"
#include "model/text/utf8.h"

namespace flotilla::jinja {
namespace {

constexpr std::string_view kSpace = " \t\n\r\f\v";

bool IsNameStart(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

void AppendUtf8(uint32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  } else if (c < 0x10000) {
    out += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
            static_cast<char>(0x80 | (c & 63))};
  } else {
    out += {static_cast<char>(0xf0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
            static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
  }
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) {
    // Line ends become \n; the last one, if any, is dropped.
    source_.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r') {
        source_ += '\n';
        if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      } else {
        source_ += source[i];
      }
    }
    if (source_.ends_with('\n')) source_.pop_back();
  }

  absl::StatusOr<std::vector<Token>> Run() {
    while (status_.ok() && at_ < source_.size()) LexText();
    if (!status_.ok()) return status_;
    Add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  using Kind = Token::Kind;

  char Peek(size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }

  bool StartsWith(std::string_view text) const {
    return std::string_view(source_).substr(at_).starts_with(text);
  }

  // Moves to offset `to` and counts the lines on the way.
  void Advance(size_t to) {
    line_ += static_cast<uint32_t>(std::count(source_.begin() + at_, source_.begin() + to, '\n'));
    at_ = to;
  }

  void SkipSpace() { Advance(std::min(source_.find_first_not_of(kSpace, at_), source_.size())); }

  void Add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void Fail(std::string_view problem) {
    if (status_.ok()) status_ = InvalidArgument("template line ", line_, ": ", problem);
  }

  // Reads the text up to the next tag, then the tag.
  void LexText() {
    const size_t begin = at_;
    size_t tag = begin;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        Add(Kind::kText, source_.substr(begin));
        return Advance(source_.size());
      }
      if (std::string_view("{%#").find(source_[tag + 1]) != std::string_view::npos) break;
    }
    const char type = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    std::string_view text = std::string_view(source_).substr(begin, tag - begin);
    if (sign == '-') {
      text = text.substr(0, text.find_last_not_of(kSpace) + 1);
    } else if (sign != '+' && type != '{') {
      text = StripLineStart(text, begin);
    }
    if (!text.empty()) Add(Kind::kText, std::string(text));
    Advance(tag + 2 + (sign == '-' || sign == '+'));
    if (type == '#') return SkipComment();
    Add(type == '{' ? Kind::kPrintBegin : Kind::kBlockBegin, "");
    LexTag(type == '{' ? Kind::kPrintEnd : Kind::kBlockEnd);
  }

  // lstrip_blocks: removes white space between the start of a line and a tag.
  std::string_view StripLineStart(std::string_view text, size_t begin) const {
    const size_t newline = text.rfind('\n');
    const bool whole_line =
        newline != std::string_view::npos || begin == 0 || source_[begin - 1] == '\n';
    const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
    if (!whole_line || text.find_first_not_of(kSpace, line_start) != std::string_view::npos) {
      return text;
    }
    return text.substr(0, line_start);
  }

  // Called after a tag that ended with `sign`: trim_blocks removes one newline, and the sign -
  // removes all white space.
  void TrimAfterTag(char sign, bool trim_block) {
    if (sign == '-') {
      SkipSpace();
    } else if (sign != '+' && trim_block && Peek() == '\n') {
      Advance(at_ + 1);
    }
  }

  void SkipComment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return Fail("a comment does not end");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    Advance(end + 2);
    TrimAfterTag(sign, /*trim_block=*/true);
  }

  // If the tag ends here, moves past the end and returns true.
  bool LexTagEnd(Kind end) {
    const std::string_view mark = end == Kind::kPrintEnd ? "}}" : "%}";
    char sign = Peek();
    if (sign != '-' && !(sign == '+' && end == Kind::kBlockEnd)) sign = '\0';
    if (!std::string_view(source_).substr(at_ + (sign != '\0')).starts_with(mark)) return false;
    Add(end, "");
    Advance(at_ + (sign != '\0') + 2);
    TrimAfterTag(sign, end == Kind::kBlockEnd);
    return true;
  }

  void LexTag(Kind end) {
    std::string open;  // brackets not yet closed
    while (status_.ok()) {
      SkipSpace();
      if (at_ >= source_.size()) return Fail("a tag does not end");
      if (open.empty() && LexTagEnd(end)) return;
      const char c = Peek();
      if (IsNameStart(c)) {
        LexName();
      } else if (IsDigit(c)) {
        LexNumber();
      } else if (c == '\'' || c == '"') {
        LexString(c);
      } else {
        LexOperator(open);
      }
    }
  }

  void LexName() {
    size_t end = at_;
    while (end < source_.size() && (IsNameStart(source_[end]) || IsDigit(source_[end]))) ++end;
    Add(Kind::kName, source_.substr(at_, end - at_));
    at_ = end;
  }

  void LexNumber() {
    size_t end = at_;
    const auto digits = [&] {
      while (end < source_.size() && (IsDigit(source_[end]) || source_[end] == '_')) ++end;
    };
    digits();
    Kind kind = Kind::kInteger;
    if (end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      kind = Kind::kFloat;
      ++end;
      digits();
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '-' || source_[exponent] == '+')) {
        ++exponent;
      }
      if (exponent < source_.size() && IsDigit(source_[exponent])) {
        kind = Kind::kFloat;
        end = exponent;
        digits();
      }
    }
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    Add(kind, std::move(text));
    at_ = end;
  }

  void LexString(char quote) {
    std::string value;
    size_t at = at_ + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] != '\\') {
        value += source_[at++];
      } else if (++at < source_.size()) {
        at = LexEscape(at, value);
      }
    }
    if (at >= source_.size()) return Fail("a string does not end");
    Add(Kind::kString, std::move(value));
    Advance(at + 1);
  }

  // Reads the escape whose letter is at `at`, by Python's rules. Returns where it ends.
  size_t LexEscape(size_t at, std::string& value) {
    constexpr std::string_view kLetters = "\\'\"abfnrtv";
    constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
    const char c = source_[at];
    if (const size_t i = kLetters.find(c); i != std::string_view::npos) {
      value += kValues[i];
      return at + 1;
    }
    if (c == '\n') return at + 1;  // a continued line
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits > 0) {
      const std::string hex = source_.substr(at + 1, digits);
      if (hex.size() != digits ||
          !std::ranges::all_of(hex, [](unsigned char h) { return std::isxdigit(h); })) {
        Fail("a malformed escape in a string");
        return at + 1;
      }
      const uint64_t code_point = std::strtoull(hex.c_str(), nullptr, 16);
      if (code_point > 0x10ffff || (code_point >= 0xd800 && code_point < 0xe000)) {
        Fail("an escape that is not a character");
        return at + 1;
      }
      AppendUtf8(static_cast<uint32_t>(code_point), value);
      return at + 1 + digits;
    }
    if (c >= '0' && c <= '7') {
      uint32_t code_point = 0;
      for (int i = 0; i < 3 && at < source_.size() && source_[at] >= '0' && source_[at] <= '7';
           ++i) {
        code_point = code_point * 8 + static_cast<uint32_t>(source_[at++] - '0');
      }
      AppendUtf8(code_point, value);
      return at;
    }
    value += {'\\', c};
    return at + 1;
  }

  void LexOperator(std::string& open) {
    constexpr std::string_view kLong[] = {"//", "**", "==", "!=", "<=", ">="};
    constexpr std::string_view kShort = "+-/*%~[](){}=<>.:|,;";
    for (const std::string_view op : kLong) {
      if (!StartsWith(op)) continue;
      Add(Kind::kOperator, std::string(op));
      at_ += op.size();
      return;
    }
    const char c = Peek();
    if (kShort.find(c) == std::string_view::npos) return Fail("an unexpected character");
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) {
        return Fail(Cat("an unexpected '", std::string(1, c), "'"));
      }
      open.pop_back();
    }
    Add(Kind::kOperator, std::string(1, c));
    ++at_;
  }

  std::string source_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  std::vector<Token> tokens_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) {
  if (const size_t bad = model::FindInvalidUtf8(source); bad != std::string_view::npos) {
    return InvalidArgument("the template is not UTF-8 at byte ", bad);
  }
  return Lexer(source).Run();
}

}  // namespace flotilla::jinja
