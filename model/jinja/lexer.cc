#include "model/jinja/lexer.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

#include "common/types/text.h"
#include "model/jinja/letter_case.h"
#include "model/text/utf8.h"

namespace flotilla::jinja {
namespace {

bool IsNameStart(uint32_t c) {
  return c == '_' || u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_XID_START) != 0;
}
bool IsInName(uint32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_XID_CONTINUE) != 0;
}
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The first place from `at` on that is not white space.
size_t SpaceEnd(std::string_view text, size_t at) {
  while (at < text.size()) {
    const model::Utf8Part part = model::ReadUtf8(text, at);
    if (!IsSpace(part.code_point)) break;
    at += part.bytes;
  }
  return at;
}

// The text without the white space at its end.
std::string_view WithoutSpaceAtEnd(std::string_view text) {
  while (!text.empty()) {
    size_t last = text.size() - 1;
    while (last > 0 && (static_cast<uint8_t>(text[last]) & 0xc0) == 0x80) --last;
    if (!IsSpace(model::ReadUtf8(text, last).code_point)) break;
    text = text.substr(0, last);
  }
  return text;
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

  void SkipSpace() { Advance(SpaceEnd(source_, at_)); }

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
    const Mark raw = type == '%' ? FindMark(tag, "raw") : Mark();
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const std::string_view text = TextBefore(begin, tag, type, sign);
    if (!text.empty()) Add(Kind::kText, std::string(text));
    if (raw.end > 0 && raw.end_sign != '+') {
      Advance(raw.end);
      TrimAfterTag(raw.end_sign, /*trim_block=*/false);
      return LexRaw();
    }
    Advance(tag + 2 + (sign == '-' || sign == '+'));
    if (type == '#') return SkipComment();
    Add(type == '{' ? Kind::kPrintBegin : Kind::kBlockBegin, "");
    LexTag(type == '{' ? Kind::kPrintEnd : Kind::kBlockEnd);
  }

  // The text between `begin` and a tag, without the white space that the tag takes.
  std::string_view TextBefore(size_t begin, size_t tag, char type, char sign) const {
    const std::string_view text = std::string_view(source_).substr(begin, tag - begin);
    if (sign == '-') return WithoutSpaceAtEnd(text);
    return sign != '+' && type != '{' ? StripLineStart(text, begin) : text;
  }

  // A tag that has nothing but a word.
  struct Mark {
    size_t end = 0;  // 0: there is none
    char begin_sign = '\0', end_sign = '\0';
  };
  Mark FindMark(size_t tag, std::string_view word) const {
    const std::string_view source = source_;
    const auto take_sign = [&](size_t& at) {
      return at < source.size() && (source[at] == '-' || source[at] == '+') ? source[at++] : '\0';
    };
    size_t at = tag + 2;
    const char begin_sign = take_sign(at);
    at = SpaceEnd(source, at);
    if (!source.substr(at).starts_with(word)) return {};
    at = SpaceEnd(source, at + word.size());
    const char end_sign = take_sign(at);
    if (!source.substr(at).starts_with("%}")) return {};
    return {at + 2, begin_sign, end_sign};
  }

  // Takes all up to the tag endraw as text.
  void LexRaw() {
    const size_t begin = at_;
    for (size_t tag = begin;; tag += 2) {
      tag = source_.find("{%", tag);
      if (tag == std::string::npos) return Fail("a raw block does not end");
      const Mark mark = FindMark(tag, "endraw");
      if (mark.end == 0) continue;
      const std::string_view text = TextBefore(begin, tag, '%', mark.begin_sign);
      if (!text.empty()) Add(Kind::kText, std::string(text));
      Advance(mark.end);
      return TrimAfterTag(mark.end_sign, /*trim_block=*/true);
    }
  }

  // lstrip_blocks: removes white space between the start of a line and a tag.
  std::string_view StripLineStart(std::string_view text, size_t begin) const {
    const size_t newline = text.rfind('\n');
    const bool whole_line =
        newline != std::string_view::npos || begin == 0 || source_[begin - 1] == '\n';
    const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
    return whole_line && SpaceEnd(text, line_start) == text.size() ? text.substr(0, line_start)
                                                                   : text;
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
      if (IsNameStart(model::ReadUtf8(source_, at_).code_point)) {
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
    while (end < source_.size()) {
      const model::Utf8Part part = model::ReadUtf8(source_, end);
      if (!IsNameStart(part.code_point) && !IsInName(part.code_point)) break;
      end += part.bytes;
    }
    Add(Kind::kName, source_.substr(at_, end - at_));
    at_ = end;
  }

  // Reads a number with a prefix such as 0x, if there is one. Its token has the base's letter in
  // front.
  bool LexPrefixedNumber() {
    const char letter = static_cast<char>(std::tolower(static_cast<unsigned char>(Peek(1))));
    const std::string_view digits = letter == 'x'   ? "0123456789abcdefABCDEF"
                                    : letter == 'o' ? "01234567"
                                    : letter == 'b' ? "01"
                                                    : "";
    const size_t first = at_ + 2 + (Peek(2) == '_' ? 1 : 0);
    if (Peek() != '0' || first >= source_.size() ||
        digits.find(source_[first]) == std::string_view::npos) {
      return false;
    }
    size_t end = first;
    while (end < source_.size() &&
           (source_[end] == '_' || digits.find(source_[end]) != std::string_view::npos)) {
      ++end;
    }
    std::string text = source_.substr(first, end - first);
    std::erase(text, '_');
    Add(Kind::kInteger, letter + text);
    at_ = end;
    return true;
  }

  // Where the digits from `at` on end. One _ may stand between two of them.
  size_t DigitsEnd(size_t at) const {
    const auto digit = [&](size_t i) { return i < source_.size() && IsDigit(source_[i]); };
    while (digit(at) || (at < source_.size() && source_[at] == '_' && digit(at + 1))) ++at;
    return at;
  }

  void LexNumber() {
    if (LexPrefixedNumber()) return;
    size_t end = DigitsEnd(at_);
    Kind kind = Kind::kInteger;
    // In x.0.1 there are two integers.
    const bool member =
        !tokens_.empty() && tokens_.back().kind == Kind::kOperator && tokens_.back().text == ".";
    const auto digit = [&](size_t i) { return i < source_.size() && IsDigit(source_[i]); };
    if (!member && end < source_.size() && source_[end] == '.' && digit(end + 1)) {
      kind = Kind::kFloat;
      end = DigitsEnd(end + 1);
    }
    if (!member && end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '-' || source_[exponent] == '+')) {
        ++exponent;
      }
      if (digit(exponent)) {
        kind = Kind::kFloat;
        end = DigitsEnd(exponent);
      }
    }
    std::string text = source_.substr(at_, end - at_);
    std::erase(text, '_');
    if (kind == Kind::kInteger && text.size() > 1 && text[0] == '0' &&
        text.find_first_not_of('0') != std::string::npos) {
      return Fail("an integer begins with 0");
    }
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
    if (c == 'N') Fail("the escape \\N is not supported");
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
      model::AppendUtf8(static_cast<uint32_t>(code_point), value);
      return at + 1 + digits;
    }
    if (c >= '0' && c <= '7') {
      uint32_t code_point = 0;
      for (int i = 0; i < 3 && at < source_.size() && source_[at] >= '0' && source_[at] <= '7';
           ++i) {
        code_point = code_point * 8 + static_cast<uint32_t>(source_[at++] - '0');
      }
      model::AppendUtf8(code_point, value);
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
