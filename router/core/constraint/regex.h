// Regular expressions of clients, as a tree, and as the text that XGrammar compiles.
//
// XGrammar's engines ignore an anchor in the middle, skip a lookahead, and take an unknown escape
// for the letter. So the router reads an expression itself, refuses by name what it cannot keep,
// and writes it again in the few forms whose meaning there is sure: literals, classes of ranges,
// groups, alternatives and repetitions.
//
// The dialects of clients differ in what \d, \w, \s, their complements and the dot match outside
// ASCII. What is written matches only what all of ECMAScript and Python's `re` take.
//
// Pure values and functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "router/core/constraint/codepoints.h"

namespace flotilla::router {

struct RegexNode {
  // A set without characters and an alternative without children match nothing; a sequence without
  // children matches the empty text.
  enum class Kind { kSet, kSequence, kAlternatives, kRepeat };
  static constexpr int kUnbounded = -1;

  Kind kind = Kind::kSequence;
  CodepointSet set;
  std::vector<RegexNode> children;  // of a repeat: one
  int min = 0, max = 0;             // of a repeat

  bool never() const { return kind == Kind::kAlternatives && children.empty(); }
  bool is_empty_text() const { return kind == Kind::kSequence && children.empty(); }
};

// These keep the tree small: what never matches and the empty text go where they have no effect.
RegexNode SetNode(CodepointSet set);
RegexNode SequenceNode(std::vector<RegexNode> parts);
RegexNode AlternativesNode(std::vector<RegexNode> options);
RegexNode RepeatNode(RegexNode part, int min, int max);

// The characters that stand for themselves inside a JSON string.
const CodepointSet& UnescapedInJson();

enum class RegexUse {
  kAnswer,      // the answer as a whole matches
  kJsonString,  // "pattern" of a JSON schema: the expression is found in the content of the string,
                // which holds only UnescapedInJson()
  kWritten,     // "pattern" as WriteRegex wrote it, between '^' and '$': the whole text matches
};

// The most bytes of an expression, groups within groups, and characters that it has once each
// repetition is written out.
inline constexpr std::size_t kMaxRegexBytes = 64 * 1024;
inline constexpr int kMaxRegexDepth = 32;
inline constexpr std::size_t kMaxRegexSize = 65'536;

// INVALID_ARGUMENT says what is not supported, or what is wrong at which character, counted from 1.
absl::StatusOr<RegexNode> ParseRegex(std::string_view pattern, RegexUse use);

// All strings of UnescapedInJson() but `words`. `words` has no duplicates.
RegexNode AllBut(const std::vector<std::u32string>& words);

// The text for XGrammar, as a pattern of a schema or in a structural tag. It is ASCII but for a
// mark in larger expressions, which makes XGrammar compile them as a grammar rather than an
// automaton.
std::string WriteRegex(const RegexNode& node);

// The text for XGrammar as a regular expression by itself, which it compiles as a grammar.
std::string WriteGrammarRegex(const RegexNode& node);

// The least and the most characters of what matches, which is something; no value: no bound.
struct Lengths {
  std::size_t min = 0;
  std::optional<std::size_t> max;
};
Lengths LengthsOf(const RegexNode& node);

// The characters that the expression has once each repetition is written out, at most
// kMaxRegexSize + 1.
std::size_t SizeOf(const RegexNode& node);

}  // namespace flotilla::router
