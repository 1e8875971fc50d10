// XGrammar's own source, in which alone a matcher's parts can be seen.
#include "matcher_bytes.h"
#include "grammar_matcher.cc"

namespace xgrammar {
namespace {

class Parts : public GrammarMatcher::Impl {
 public:
  static std::size_t Bytes(const GrammarMatcher::Impl& matcher) {
    return MemorySize(matcher.*(&Parts::scanable_state_history_)) +
           MemorySize(matcher.*(&Parts::rule_id_to_completable_states_));
  }
};

}  // namespace

std::size_t MatcherBytes(const GrammarMatcher& matcher) { return Parts::Bytes(*matcher.ImplPtr()); }

}  // namespace xgrammar
