#include "router/core/constraint/constraints.h"

#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/types/text.h"
#include "router/core/constraint/codepoints.h"
#include "router/core/constraint/json_schema.h"
#include "router/core/constraint/regex.h"

namespace flotilla::router {
namespace {

absl::StatusOr<Constraint> Bounded(Constraint::Kind kind, std::string text, std::string_view what) {
  if (text.size() > Constraint::kMaxBytes) {
    return InvalidArgument("the ", what, " has ", text.size(), " bytes as it is compiled; at most ",
                           Constraint::kMaxBytes, " are allowed");
  }
  return Constraint{kind, std::move(text)};
}

// A literal of EBNF. Its escapes are those that XGrammar's grammars know.
void AppendLiteral(std::string_view text, std::string& ebnf) {
  ebnf += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      ebnf += '\\';
      ebnf += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      ebnf += absl::StrFormat("\\u%04x", static_cast<unsigned>(byte));
    } else {
      ebnf += c;
    }
  }
  ebnf += '"';
}

// Whether some line begins the rule.
bool HasRule(std::string_view grammar, std::string_view name) {
  constexpr std::string_view kBlanks = " \t\r";
  for (std::size_t begin = 0; begin < grammar.size();) {
    const std::size_t end = std::min(grammar.find('\n', begin), grammar.size());
    std::string_view line = grammar.substr(begin, end - begin);
    begin = end + 1;
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (!line.starts_with(name)) continue;
    line.remove_prefix(name.size());
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.starts_with("::=")) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<Constraint> ChoiceConstraint(const std::vector<std::string>& choices) {
  if (choices.empty() || choices.size() > kMaxChoices) {
    return InvalidArgument("there are ", choices.size(), " choices; 1 to ", kMaxChoices,
                           " are allowed");
  }
  std::set<std::string_view> seen;
  std::string grammar = "root ::= ";
  for (const std::string& choice : choices) {
    if (choice.empty()) return InvalidArgument("a choice must not be empty");
    if (!DecodeUtf8(choice)) return InvalidArgument("a choice is not valid UTF-8");
    if (!seen.insert(choice).second) return InvalidArgument("a choice comes twice");
    if (seen.size() > 1) grammar += " | ";
    AppendLiteral(choice, grammar);
    if (grammar.size() > Constraint::kMaxBytes) break;
  }
  return Bounded(Constraint::Kind::kGrammar, std::move(grammar), "choice");
}

absl::StatusOr<Constraint> RegexConstraint(std::string_view pattern) {
  const absl::StatusOr<RegexNode> node = ParseRegex(pattern, RegexUse::kAnswer);
  if (!node.ok()) return InvalidArgument("the regex ", std::string(node.status().message()));
  if (node->is_empty_text()) return InvalidArgument("the regex matches only the empty text");
  return Bounded(Constraint::Kind::kRegex, WriteGrammarRegex(*node), "regex");
}

absl::StatusOr<Constraint> GrammarConstraint(std::string_view grammar) {
  if (!DecodeUtf8(grammar)) return InvalidArgument("the grammar is not valid UTF-8");
  if (grammar.find('\0') != std::string_view::npos) {
    return InvalidArgument("the grammar has a character NUL");
  }
  if (!HasRule(grammar, "root")) {
    return InvalidArgument("the grammar has no rule 'root', as in: root ::= \"yes\" | \"no\"");
  }
  return Bounded(Constraint::Kind::kGrammar, std::string(grammar), "grammar");
}

Constraint JsonObjectConstraint() { return *JsonSchemaConstraint(OrderedJson{{"type", "object"}}); }

}  // namespace flotilla::router
