// XGrammar's own source, in which alone a matcher's parts can be seen.
#include "matcher_parts.h"

#include <algorithm>
#include <string_view>

#include "grammar_matcher.cc"

namespace xgrammar {
namespace {

constexpr std::string_view kSpace = " \n\r\t";

class Parts : public GrammarMatcher::Impl {
 public:
  static std::size_t Bytes(const GrammarMatcher::Impl& matcher) {
    return MemorySize(matcher.*(&Parts::scanable_state_history_)) +
           MemorySize(matcher.*(&Parts::rule_id_to_completable_states_));
  }

  static bool IsBetweenParts(const GrammarMatcher::Impl& matcher) {
    const auto& history = matcher.*(&Parts::scanable_state_history_);
    const Grammar& grammar = matcher.*(&Parts::grammar_);
    bool any = false;
    for (const ParserState& state : history[history.size() - 1]) {
      if (state.rule_id < 0) return false;  // it has no automaton
      const auto& automaton = grammar->per_rule_fsms[state.rule_id]->GetFsm().GetFsm();
      std::size_t taken = 0;  // of kSpace
      for (const FSMEdge& edge : automaton.GetEdges(state.element_id)) {
        if (!edge.IsCharRange()) continue;
        const auto spaces = std::count_if(kSpace.begin(), kSpace.end(), [&edge](char space) {
          return edge.min <= space && space <= edge.max;
        });
        if (spaces == 0) continue;
        const bool loops = edge.target == state.element_id;
        if (!loops || spaces != edge.max - edge.min + 1) return false;
        taken += spaces;
      }
      if (taken != 0 && taken != kSpace.size()) return false;
      any |= taken != 0;
    }
    return any;
  }
};

}  // namespace

std::size_t MatcherBytes(const GrammarMatcher& matcher) { return Parts::Bytes(*matcher.ImplPtr()); }

bool IsBetweenParts(const GrammarMatcher& matcher) {
  return Parts::IsBetweenParts(*matcher.ImplPtr());
}

}  // namespace xgrammar
