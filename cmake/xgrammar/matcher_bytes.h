// What XGrammar's interface lacks: how much memory a matcher takes.
#pragma once

#include <xgrammar/matcher.h>

#include <cstddef>

namespace xgrammar {

// About the memory of what the matcher has accepted, in bytes, without that of its grammar. It
// takes the same short time whatever the matcher holds.
std::size_t MatcherBytes(const GrammarMatcher& matcher);

}  // namespace xgrammar
