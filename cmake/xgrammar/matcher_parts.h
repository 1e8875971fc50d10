// What XGrammar's interface lacks: how much memory a matcher takes, and where in its grammar it is.
#pragma once

#include <xgrammar/matcher.h>

#include <cstddef>

namespace xgrammar {

// About the memory of what the matcher has accepted, in bytes, without that of its grammar. It
// takes the same short time whatever the matcher holds.
std::size_t MatcherBytes(const GrammarMatcher& matcher);

// Whether any amount of white space may come, and only as grammars of JSON schemas have it between
// the parts of JSON: as [ \n\r\t]*. Where text may come that can have white space, such as a string
// or thoughts, this is false.
bool IsBetweenParts(const GrammarMatcher& matcher);

}  // namespace xgrammar
