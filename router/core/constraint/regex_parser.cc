// Reads an expression: the part of regex.h that knows the dialects of clients.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "common/types/text.h"
#include "router/core/constraint/regex.h"

namespace flotilla::router {
namespace {

// What an escape or a class stands for: the characters that it has in every dialect, and those
// that it has in any. They differ, so that the complement of one comes from the other.
struct Class {
  CodepointSet surely, maybe;
  static Class Of(CodepointSet set) { return {set, set}; }
  Class Complement() const { return {maybe.Complement(), surely.Complement()}; }
};

// A union of many sets. What overlaps is put together when the ranges have become twice as many, so
// that the time does not grow with the square of the sets.
class Ranges {
 public:
  void Add(const CodepointSet& set) {
    ranges_.insert(ranges_.end(), set.ranges().begin(), set.ranges().end());
    if (ranges_.size() < next_) return;
    ranges_ = Union().ranges();
    next_ = 2 * ranges_.size() + kLeast;
  }
  CodepointSet Union() const { return CodepointSet(ranges_); }

 private:
  static constexpr std::size_t kLeast = 1024;
  std::vector<CodepointSet::Range> ranges_;
  std::size_t next_ = kLeast;
};

// The zeros of all decimal digits but ASCII's (Unicode 14.0, category Nd): Python's \d has them.
constexpr char32_t kZeros[] = {
    0x660,   0x6f0,   0x7c0,   0x966,   0x9e6,   0xa66,   0xae6,   0xb66,   0xbe6,   0xc66,
    0xce6,   0xd66,   0xde6,   0xe50,   0xed0,   0xf20,   0x1040,  0x1090,  0x17e0,  0x1810,
    0x1946,  0x19d0,  0x1a80,  0x1a90,  0x1b50,  0x1bb0,  0x1c40,  0x1c50,  0xa620,  0xa8d0,
    0xa900,  0xa9d0,  0xa9f0,  0xaa50,  0xabf0,  0xff10,  0x104a0, 0x10d30, 0x11066, 0x110f0,
    0x11136, 0x111d0, 0x112f0, 0x11450, 0x114d0, 0x11650, 0x116c0, 0x11730, 0x118e0, 0x11950,
    0x11c50, 0x11d50, 0x11da0, 0x16a60, 0x16ac0, 0x16b50, 0x1d7ce, 0x1d7d8, 0x1d7e2, 0x1d7ec,
    0x1d7f6, 0x1e140, 0x1e2f0, 0x1e950, 0x1fbf0};

Class MakeDigits() {
  const CodepointSet ascii({{'0', '9'}});
  std::vector<CodepointSet::Range> others;
  for (const char32_t zero : kZeros) others.push_back({zero, zero + 9});
  return {ascii, ascii.Union(CodepointSet(std::move(others)))};
}

Class MakeWords() {
  const CodepointSet ascii({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
  return {ascii, ascii.Union(CodepointSet({{0x80, 0x10FFFF}}))};
}

Class MakeBlanks() {
  const CodepointSet ascii({{'\t', '\r'}, {' ', ' '}});
  return {ascii, ascii.Union(CodepointSet({{0x1C, 0x1F},
                                           {0x85, 0x85},
                                           {0xA0, 0xA0},
                                           {0x1680, 0x1680},
                                           {0x2000, 0x200A},
                                           {0x2028, 0x2029},
                                           {0x202F, 0x202F},
                                           {0x205F, 0x205F},
                                           {0x3000, 0x3000},
                                           {0xFEFF, 0xFEFF}}))};
}

CodepointSet Dot() {
  return CodepointSet({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}).Complement();
}

const Class& Digits() {
  static const auto* const digits = new Class(MakeDigits());
  return *digits;
}
const Class& Words() {
  static const auto* const words = new Class(MakeWords());
  return *words;
}
const Class& Blanks() {
  static const auto* const blanks = new Class(MakeBlanks());
  return *blanks;
}

// Recursive descent over the characters. The first error is kept; what is read after it does not
// matter.
class Parser {
 public:
  Parser(std::u32string text, RegexUse use)
      : text_(std::move(text)),
        use_(use),
        alphabet_(use == RegexUse::kJsonString ? UnescapedInJson() : CodepointSet::All()) {}

  absl::StatusOr<RegexNode> Parse() {
    RegexNode node = Alternatives(0);
    if (status_.ok() && at_ < text_.size()) Fail("has a ')' without its '('");
    if (!status_.ok()) return status_;
    if (SizeOf(node) > kMaxRegexSize) {
      return InvalidArgument("has repetitions of more than ", kMaxRegexSize, " characters in all");
    }
    return node;
  }

 private:
  static constexpr char32_t kEnd = 0x110000;  // no character
  static constexpr int kMaxCount = static_cast<int>(kMaxRegexSize);

  char32_t Peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : kEnd;
  }
  bool Take(char32_t c) {
    if (Peek() != c) return false;
    ++at_;
    return true;
  }
  bool Take(std::u32string_view word) {
    if (!std::u32string_view(text_).substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  RegexNode Fail(std::string_view what) {
    if (status_.ok()) status_ = InvalidArgument(what, ", at character ", at_ + 1);
    return {};
  }

  RegexNode Set(CodepointSet set) { return SetNode(set.Intersection(alphabet_)); }
  RegexNode Anything() { return RepeatNode(Set(CodepointSet::All()), 0, RegexNode::kUnbounded); }

  RegexNode Alternatives(int depth) {
    if (depth > kMaxRegexDepth) return Fail(Cat("has groups nested deeper than ", kMaxRegexDepth));
    std::vector<RegexNode> options;
    do {
      options.push_back(Sequence(depth));
    } while (status_.ok() && Take('|'));
    return AlternativesNode(std::move(options));
  }

  RegexNode Sequence(int depth) {
    std::vector<RegexNode> parts;
    const bool anchored = depth == 0 && Take('^');
    if (depth == 0 && use_ == RegexUse::kJsonString && !anchored) parts.push_back(Anything());
    bool ended = false;
    while (status_.ok() && Peek() != kEnd && Peek() != '|' && Peek() != ')') {
      if (depth == 0 && Peek() == '$' && (Peek(1) == kEnd || Peek(1) == '|')) {
        ++at_;
        ended = true;
        break;
      }
      parts.push_back(Quantified(depth));
    }
    if (depth == 0 && use_ == RegexUse::kJsonString && !ended) parts.push_back(Anything());
    return SequenceNode(std::move(parts));
  }

  RegexNode Quantified(int depth) {
    RegexNode atom = Atom(depth);
    int min = 0, max = RegexNode::kUnbounded;
    if (Take('*')) {
    } else if (Take('+')) {
      min = 1;
    } else if (Take('?')) {
      max = 1;
    } else if (Peek() == '{') {
      if (!Counts(min, max)) return {};
    } else {
      return atom;
    }
    Take('?');  // a lazy repetition matches the same texts as a greedy one
    if (Peek() == '+') return Fail("has a possessive repetition, which is not supported");
    if (Peek() == '*' || Peek() == '?' || Peek() == '{') {
      return Fail("repeats a repetition without a group");
    }
    return RepeatNode(std::move(atom), min, max);
  }

  bool Count(int& count) {
    if (Peek() < '0' || Peek() > '9') return false;
    count = 0;
    while (Peek() >= '0' && Peek() <= '9' && count <= kMaxCount) {
      count = count * 10 + static_cast<int>(text_[at_++] - '0');
    }
    if (count <= kMaxCount) return true;
    Fail(Cat("repeats more than ", kMaxCount, " times"));
    return false;
  }

  // {n}, {n,} or {n,m}.
  bool Counts(int& min, int& max) {
    ++at_;
    bool good = Count(min);
    max = min;
    if (good && Take(',')) {
      max = RegexNode::kUnbounded;
      if (Peek() != '}') good = Count(max) && min <= max;
    }
    if (good && Take('}')) return true;
    Fail("has a '{' that begins no repetition; a literal one is written \\{");
    return false;
  }

  RegexNode Atom(int depth) {
    const char32_t c = text_[at_];
    switch (c) {
      case '(':
        return Group(depth);
      case '[':
        return Bracket();
      case '\\': {
        const Class escaped = Escape(/*in_class=*/false);
        return Set(escaped.surely);
      }
      case '.':
        ++at_;
        return Set(Dot());
      case '^':
      case '$':
        return Fail(Cat("has the anchor '", std::string(1, static_cast<char>(c)),
                        "' inside, where it is not supported"));
      case '*':
      case '+':
      case '?':
      case '{':
        return Fail("has a repetition of nothing");
      default:
        ++at_;
        return Set(CodepointSet::Of(c));
    }
  }

  RegexNode Group(int depth) {
    ++at_;
    if (Peek() == '?') {
      if (Take(U"?=") || Take(U"?!")) return Fail("has a lookahead, which is not supported");
      if (Take(U"?<=") || Take(U"?<!")) return Fail("has a lookbehind, which is not supported");
      const bool named = Take(U"?<") || Take(U"?P<");
      if (named) {
        while (IsName(Peek())) ++at_;
        if (!Take('>')) return Fail("has a group whose name is not one");
      } else if (!Take(U"?:")) {
        return Fail("has a group with a flag or a condition, which is not supported");
      }
    }
    RegexNode inside = Alternatives(depth + 1);
    if (status_.ok() && !Take(')')) return Fail("has a '(' without its ')'");
    return inside;
  }
  static bool IsName(char32_t c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  }

  RegexNode Bracket() {
    ++at_;
    const bool negated = Take('^');
    if (Peek() == ']') return Fail("has an empty class");
    Ranges surely, maybe;
    const auto add = [&](const Class& members) {
      surely.Add(members.surely);
      maybe.Add(members.maybe);
    };
    while (status_.ok() && Peek() != ']') {
      if (Peek() == kEnd) return Fail("has a '[' without its ']'");
      if (Peek() == '[' && (Peek(1) == ':' || Peek(1) == '.' || Peek(1) == '=')) {
        return Fail("has a POSIX class, which is not supported");
      }
      const Class first = Member();
      if (Peek() != '-' || Peek(1) == ']') {
        add(first);
        continue;
      }
      ++at_;
      const Class last = Member();
      const auto from = Single(first), to = Single(last);
      if (!status_.ok()) return {};
      if (!from || !to || *from > *to) return Fail("has a range of characters that is none");
      add(Class::Of(CodepointSet({{*from, *to}})));
    }
    ++at_;
    return Set(negated ? maybe.Union().Complement() : surely.Union());
  }

  Class Member() {
    if (Peek() == '\\') return Escape(/*in_class=*/true);
    if (Peek() == kEnd) {
      Fail("has a '[' without its ']'");
      return {};
    }
    return Class::Of(CodepointSet::Of(text_[at_++]));
  }
  static std::optional<char32_t> Single(const Class& member) {
    const auto& ranges = member.surely.ranges();
    if (!(member.surely == member.maybe) || ranges.size() != 1) return std::nullopt;
    return ranges[0].first == ranges[0].last ? std::optional(ranges[0].first) : std::nullopt;
  }

  Class Escape(bool in_class) {
    ++at_;
    const char32_t c = Peek();
    if (c == kEnd) {
      Fail("ends with a backslash");
      return {};
    }
    const auto one = [this](char32_t character) {
      ++at_;
      return Class::Of(CodepointSet::Of(character));
    };
    const auto many = [this](const Class& characters) {
      ++at_;
      return characters;
    };
    switch (c) {
      case 'd':
        return many(Digits());
      case 'D':
        return many(Digits().Complement());
      case 'w':
        return many(Words());
      case 'W':
        return many(Words().Complement());
      case 's':
        return many(Blanks());
      case 'S':
        return many(Blanks().Complement());
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'v':
        return one('\v');
      case 'f':
        return one('\f');
      case 'r':
        return one('\r');
      case 'x':
        return Hex(2);
      case 'u':
        return use_ == RegexUse::kWritten && Peek(1) == '{' ? WrittenCode() : Hex(4);
      case 'b':
        if (in_class) return one('\b');
        [[fallthrough]];
      case 'B':
        Fail("has a word boundary, which is not supported");
        return {};
      case 'p':
      case 'P':
        Fail("has a Unicode property, which is not supported");
        return {};
      default:
        break;
    }
    if (c == '0' && !(Peek(1) >= '0' && Peek(1) <= '9')) return one(0);
    if (c == 'k' || (c >= '0' && c <= '9')) {
      Fail("has a reference to a group or an octal escape, which is not supported");
      return {};
    }
    if (IsName(c) && c != '_') {
      Fail(Cat("has the escape '\\", std::string(1, static_cast<char>(c)),
               "', which is not supported"));
      return {};
    }
    return one(c);
  }

  // {10ffff}, which is no escape for clients: dialects differ.
  Class WrittenCode() {
    ++at_;
    int digits = 0;
    while (Peek(static_cast<std::size_t>(digits) + 1) != '}' && digits < 6) ++digits;
    Class character = Hex(digits);
    ++at_;
    return character;
  }

  Class Hex(int digits) {
    ++at_;
    char32_t code = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = Peek();
      const bool decimal = c >= '0' && c <= '9';
      const char32_t lower = c | 0x20;
      if (!decimal && (lower < 'a' || lower > 'f')) {
        Fail(Cat("has an escape without its ", digits, " hexadecimal digits"));
        return {};
      }
      code = code * 16 + (decimal ? c - '0' : lower - 'a' + 10);
      ++at_;
    }
    if (code >= 0xD800 && code <= 0xDFFF) {
      Fail("has half of a surrogate pair, which is not supported");
      return {};
    }
    return Class::Of(CodepointSet::Of(code));
  }

  const std::u32string text_;
  const RegexUse use_;
  const CodepointSet alphabet_;
  std::size_t at_ = 0;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<RegexNode> ParseRegex(std::string_view pattern, RegexUse use) {
  if (pattern.size() > kMaxRegexBytes) {
    return InvalidArgument("is ", pattern.size(), " bytes long; at most ", kMaxRegexBytes,
                           " are allowed");
  }
  std::optional<std::u32string> text = DecodeUtf8(pattern);
  if (!text) return InvalidArgument("is not valid UTF-8");
  absl::StatusOr<RegexNode> node = Parser(*std::move(text), use).Parse();
  if (node.ok() && node->never()) {
    return InvalidArgument("matches nothing", use == RegexUse::kJsonString
                                                  ? " without a character that JSON escapes"
                                                  : "");
  }
  return node;
}

}  // namespace flotilla::router
