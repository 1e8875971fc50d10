// Constraints that are no JSON schema (json_schema.h): choices, regular expressions, grammars and
// structural tags, from the client's form to the text that workers compile. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/constraint.h"
#include "router/core/constraint/ordered_json.h"

namespace flotilla::router {

inline constexpr std::size_t kMaxChoices = 1000;
// Formats within formats of a structural tag, and formats in all.
inline constexpr int kMaxFormatDepth = 16;
inline constexpr int kMaxFormats = 1000;

// The answer is one of these texts. INVALID_ARGUMENT unless they are 1 to kMaxChoices different
// ones, none is empty, and the grammar of all fits Constraint::kMaxBytes.
absl::StatusOr<Constraint> ChoiceConstraint(const std::vector<std::string>& choices);

// The whole answer matches. INVALID_ARGUMENT says what is not supported (regex.h).
absl::StatusOr<Constraint> RegexConstraint(std::string_view pattern);

// A grammar in EBNF, as GBNF of llama.cpp and XGrammar write it, of at most Constraint::kMaxBytes,
// with a rule `root`. Its other rules are checked where it is compiled.
absl::StatusOr<Constraint> GrammarConstraint(std::string_view grammar);

// XGrammar's structural tag, {"format": ...}, or vLLM's older one, {"structures", "triggers"}.
// Schemas, expressions and grammars in it are checked and written as those above. INVALID_ARGUMENT
// names the place as a JSON pointer.
absl::StatusOr<Constraint> StructuralTagConstraint(const OrderedJson& tag);
absl::StatusOr<Constraint> StructuralTagConstraintFromText(std::string_view tag);

// Any JSON object.
Constraint JsonObjectConstraint();

}  // namespace flotilla::router
