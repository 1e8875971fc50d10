#include "router/core/constraint/regex.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/types/text.h"

namespace flotilla::router {
namespace {

using Kind = RegexNode::Kind;

bool IsAsciiAlnum(char32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

// Writes one expression, which has been simplified.
class Writer {
 public:
  explicit Writer(bool automaton) : automaton_(automaton) {}

  std::string Write(const RegexNode& node) {
    Append(node);
    return std::move(text_);
  }

 private:
  void Append(const RegexNode& node) {
    switch (node.kind) {
      case Kind::kSet:
        return AppendSet(node.set);
      case Kind::kSequence:
        for (const RegexNode& child : node.children) {
          child.kind == Kind::kAlternatives ? AppendGroup(child) : Append(child);
        }
        return;
      case Kind::kAlternatives:
        return AppendAlternatives(node);
      case Kind::kRepeat:
        node.children[0].kind == Kind::kSet ? Append(node.children[0])
                                            : AppendGroup(node.children[0]);
        return AppendCounts(node.min, node.max);
    }
  }
  void AppendGroup(const RegexNode& node) {
    text_ += "(?:";
    Append(node);
    text_ += ')';
  }
  void AppendAlternatives(const RegexNode& node) {
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      if (i > 0) text_ += '|';
      Append(node.children[i]);
    }
  }
  void AppendCounts(int min, int max) {
    if (max == RegexNode::kUnbounded && min <= 1) {
      text_ += min == 0 ? '*' : '+';
    } else if (min == 0 && max == 1) {
      text_ += '?';
    } else if (min == max) {
      text_ += Cat("{", min, "}");
    } else if (max == RegexNode::kUnbounded) {
      text_ += Cat("{", min, ",}");
    } else {
      text_ += Cat("{", min, ",", max, "}");
    }
  }
  // XGrammar's automaton has wrong bytes for a range of characters of two UTF-8 lengths, but for
  // ASCII and the next one. So such a set becomes alternatives. In a grammar it need not, and each
  // of its characters would then be a choice of its own, which costs many times the time.
  void AppendSet(const CodepointSet& set) {
    if (!automaton_) return AppendClass(set);
    const CodepointSet lengths[] = {CodepointSet({{0, 0x7FF}}), CodepointSet({{0x800, 0xFFFF}}),
                                    CodepointSet({{0x10000, 0x10FFFF}})};
    std::vector<CodepointSet> parts;
    for (const CodepointSet& length : lengths) {
      if (CodepointSet part = set.Intersection(length); !part.empty()) parts.push_back(part);
    }
    if (parts.size() == 1) return AppendClass(parts[0]);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      text_ += i == 0 ? "(?:" : "|";
      AppendClass(parts[i]);
    }
    text_ += ')';
  }
  void AppendClass(const CodepointSet& set) {
    const auto& ranges = set.ranges();
    if (ranges.size() == 1 && ranges[0].first == ranges[0].last) {
      return AppendLiteral(ranges[0].first);
    }
    text_ += '[';
    // XGrammar writes the escape of '^' as itself, which complements the class if it is in front.
    for (const bool caret : {false, true}) {
      for (const auto& range : ranges) {
        if ((range.first == '^') != caret) continue;
        const bool lead = range.first == '^' && text_.back() == '[';
        AppendEndpoint(lead ? range.first + 1 : range.first);
        if (range.last > range.first + (lead ? 1 : 0)) {
          text_ += '-';
          AppendEndpoint(range.last);
        }
        if (lead) text_ += '^';
      }
    }
    text_ += ']';
  }
  void AppendLiteral(char32_t c) {
    constexpr std::string_view kSpecial = "^$.*+?()[]{}|\\";
    if (c < 0x80 && kSpecial.find(static_cast<char>(c)) != std::string_view::npos) {
      text_ += '\\';
      text_ += static_cast<char>(c);
    } else if (c >= 0x20 && c < 0x7F) {
      text_ += static_cast<char>(c);
    } else {
      AppendCode(c);
    }
  }
  void AppendEndpoint(char32_t c) {
    if (IsAsciiAlnum(c)) {
      text_ += static_cast<char>(c);
    } else {
      AppendCode(c);
    }
  }
  void AppendCode(char32_t c) {
    const auto code = static_cast<std::uint32_t>(c);
    text_ += c < 0x10000 ? absl::StrFormat("\\u%04x", code) : absl::StrFormat("\\u{%x}", code);
  }

  const bool automaton_;
  std::string text_;
};

}  // namespace

RegexNode SetNode(CodepointSet set) {
  if (set.empty()) return {.kind = Kind::kAlternatives};
  return {.kind = Kind::kSet, .set = std::move(set)};
}

RegexNode SequenceNode(std::vector<RegexNode> parts) {
  RegexNode sequence{.kind = Kind::kSequence};
  for (RegexNode& part : parts) {
    if (part.never()) return {.kind = Kind::kAlternatives};
    if (part.kind != Kind::kSequence) {
      sequence.children.push_back(std::move(part));
      continue;
    }
    for (RegexNode& child : part.children) sequence.children.push_back(std::move(child));
  }
  return sequence.children.size() == 1 ? std::move(sequence.children[0]) : std::move(sequence);
}

RegexNode AlternativesNode(std::vector<RegexNode> options) {
  RegexNode alternatives{.kind = Kind::kAlternatives};
  bool empty_text = false;
  for (RegexNode& option : options) {
    if (option.is_empty_text()) {
      empty_text = true;
    } else if (option.kind == Kind::kAlternatives) {
      for (RegexNode& child : option.children) alternatives.children.push_back(std::move(child));
    } else {
      alternatives.children.push_back(std::move(option));
    }
  }
  RegexNode rest = alternatives.children.size() == 1 ? std::move(alternatives.children[0])
                                                     : std::move(alternatives);
  if (!empty_text) return rest;
  return rest.never() ? RegexNode{} : RepeatNode(std::move(rest), 0, 1);
}

RegexNode RepeatNode(RegexNode part, int min, int max) {
  if (max == 0 || part.is_empty_text() || (part.never() && min == 0)) return {};
  if (part.never() || (min == 1 && max == 1)) return part;
  RegexNode repeat{.kind = Kind::kRepeat, .min = min, .max = max};
  repeat.children.push_back(std::move(part));
  return repeat;
}

const CodepointSet& UnescapedInJson() {
  static const auto* const set =
      new CodepointSet(CodepointSet({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}).Complement());
  return *set;
}

RegexNode AllBut(const std::vector<std::u32string>& words) {
  // Splits the words by their first character. What begins otherwise is none of them.
  std::map<char32_t, std::vector<std::u32string>> by_first;
  std::vector<RegexNode> options;
  bool ends = true;
  CodepointSet others = UnescapedInJson();
  for (const std::u32string& word : words) {
    if (word.empty()) {
      ends = false;
    } else if (others.Contains(word[0])) {  // else a key needs an escape, which none has
      by_first[word[0]].push_back(word.substr(1));
    }
  }
  if (ends) options.push_back({});
  for (const auto& [first, rests] : by_first) {
    others = others.Intersection(CodepointSet::Of(first).Complement());
    std::vector<RegexNode> parts;
    parts.push_back(SetNode(CodepointSet::Of(first)));
    parts.push_back(AllBut(rests));
    options.push_back(SequenceNode(std::move(parts)));
  }
  std::vector<RegexNode> parts;
  parts.push_back(SetNode(others));
  parts.push_back(RepeatNode(SetNode(UnescapedInJson()), 0, RegexNode::kUnbounded));
  options.push_back(SequenceNode(std::move(parts)));
  return AlternativesNode(std::move(options));
}

std::string WriteRegex(const RegexNode& node) {
  // XGrammar makes an automaton of ASCII text, in time that is quadratic in the repetitions, and
  // repeats more than 128 times wrongly beside alternatives. Other text becomes a grammar.
  constexpr std::size_t kMaxUnrolled = 8;
  if (SizeOf(node) <= kMaxUnrolled) return Writer(/*automaton=*/true).Write(node);
  return Writer(/*automaton=*/false).Write(node) + "\u00e9{0}";
}

std::string WriteGrammarRegex(const RegexNode& node) {
  return Writer(/*automaton=*/false).Write(node);
}

Lengths LengthsOf(const RegexNode& node) {
  if (node.kind == Kind::kSet) return {1, 1};
  Lengths all{0, std::size_t{0}};
  if (node.kind == Kind::kRepeat) {
    const Lengths one = LengthsOf(node.children[0]);
    const bool bounded = one.max && node.max != RegexNode::kUnbounded;
    return {one.min * static_cast<std::size_t>(node.min),
            bounded ? std::optional(*one.max * static_cast<std::size_t>(node.max)) : std::nullopt};
  }
  bool first = true;
  for (const RegexNode& child : node.children) {
    const Lengths one = LengthsOf(child);
    if (node.kind == Kind::kSequence) {
      all.min += one.min;
      all.max = all.max && one.max ? std::optional(*all.max + *one.max) : std::nullopt;
    } else {
      all.min = first ? one.min : std::min(all.min, one.min);
      all.max = all.max && one.max ? std::optional(std::max(*all.max, *one.max)) : std::nullopt;
    }
    first = false;
  }
  return all;
}

std::size_t SizeOf(const RegexNode& node) {
  if (node.kind == Kind::kSet) return 1;
  std::size_t size = 0;
  for (const RegexNode& child : node.children) {
    size = std::min(size + SizeOf(child), kMaxRegexSize + 1);
  }
  if (node.kind != Kind::kRepeat) return size;
  const int times = std::max({node.min, node.max, 1});
  return std::min(size * static_cast<std::size_t>(times), kMaxRegexSize + 1);
}

}  // namespace flotilla::router
