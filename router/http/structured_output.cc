#include "router/http/structured_output.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types/text.h"
#include "router/core/constraint/constraints.h"
#include "router/core/constraint/json_schema.h"
#include "router/errors.h"

namespace flotilla::router {
namespace {

// The body is parsed once more if it has one of these, with its members in their order, which is
// that of an answer.
const std::vector<std::string_view>& Names() {
  static const auto* const names = new std::vector<std::string_view>{
      "response_format",  // OpenAI
      "structured_outputs",
      "guided_json",
      "guided_regex",
      "guided_choice",
      "guided_grammar",
      "structural_tag",  // vLLM
      "json_schema",
      "grammar",  // llama.cpp, and SGLang
      "regex",
      "ebnf",  // SGLang
  };
  return *names;
}

// Reads one body. Its errors are the reader's.
class ConstraintReader {
 public:
  ConstraintReader(ObjectReader& body, const OrderedJson& ordered)
      : body_(body), ordered_(ordered) {}

  void Read(RequestParameters& parameters) {
    ResponseFormat();
    StructuredOutputs();
    Take(body_, ordered_, "guided_json", "guided_json", &ConstraintReader::Schema);
    Take(body_, ordered_, "guided_regex", "guided_regex", &ConstraintReader::Regex);
    Take(body_, ordered_, "guided_choice", "guided_choice", &ConstraintReader::Choice);
    Take(body_, ordered_, "guided_grammar", "guided_grammar", &ConstraintReader::Grammar);
    Take(body_, ordered_, "structural_tag", "structural_tag", &ConstraintReader::Tag);
    Take(body_, ordered_, "json_schema", "json_schema", &ConstraintReader::Schema);
    Take(body_, ordered_, "regex", "regex", &ConstraintReader::Regex);
    Take(body_, ordered_, "ebnf", "ebnf", &ConstraintReader::Grammar);
    const Json* grammar = body_.Value("grammar");
    if (grammar != nullptr && *grammar != "") {  // llama.cpp sends "" for none
      Take(body_, ordered_, "grammar", "grammar", &ConstraintReader::Grammar);
    }
    if (!found_) return;
    parameters.constraint = *std::move(found_);
    parameters.constraint_field = std::move(found_path_);
  }

 private:
  using Form = absl::StatusOr<Constraint> (ConstraintReader::*)(const OrderedJson&);

  // The constraint that the member `name` of `object` asks for in this form, if it is there.
  void Take(ObjectReader& object, const OrderedJson& ordered, std::string_view name,
            std::string_view path, Form form) {
    if (object.Value(name) == nullptr || !body_.ok()) return;
    Keep(path, (this->*form)(*Find(ordered, name)));
  }

  void Keep(std::string_view path, absl::StatusOr<Constraint> constraint) {
    if (!constraint.ok()) {
      body_.Fail(InvalidField(path, Cat(path, ": ", std::string(constraint.status().message()))));
    } else if (found_) {
      body_.Fail(InvalidField(path, Cat("'", path, "' and '", found_path_,
                                        "' exclude each other: an answer has one form")));
    } else {
      found_ = *std::move(constraint);
      found_path_ = path;
    }
  }

  absl::StatusOr<Constraint> Schema(const OrderedJson& value) {
    return value.is_string() ? JsonSchemaConstraintFromText(value.get_ref<const std::string&>())
                             : JsonSchemaConstraint(value);
  }
  absl::StatusOr<Constraint> Regex(const OrderedJson& value) {
    if (!value.is_string()) return InvalidArgument("must be a string");
    return RegexConstraint(value.get_ref<const std::string&>());
  }
  absl::StatusOr<Constraint> Grammar(const OrderedJson& value) {
    if (!value.is_string()) return InvalidArgument("must be a string");
    return GrammarConstraint(value.get_ref<const std::string&>());
  }
  absl::StatusOr<Constraint> Choice(const OrderedJson& value) {
    if (!value.is_array()) return InvalidArgument("must be a list of strings");
    if (value.size() > kMaxChoices) {
      return InvalidArgument("there are ", value.size(), " choices; 1 to ", kMaxChoices,
                             " are allowed");
    }
    std::vector<std::string> choices;
    for (const OrderedJson& choice : value) {
      if (!choice.is_string()) return InvalidArgument("must be a list of strings");
      choices.push_back(choice.get<std::string>());
    }
    return ChoiceConstraint(choices);
  }
  absl::StatusOr<Constraint> Tag(const OrderedJson& value) {
    return value.is_string() ? StructuralTagConstraintFromText(value.get_ref<const std::string&>())
                             : StructuralTagConstraint(value);
  }

  void ResponseFormat() {
    const Json* value = body_.Value("response_format");
    if (value == nullptr) return;
    if (!value->is_object()) return body_.FailField("response_format", "must be an object");
    const OrderedJson& ordered = *Find(ordered_, "response_format");
    ObjectReader format(*value, "response_format.");
    const std::string type = format.String("type").value_or("");
    if (type == "structural_tag") {
      return Keep("response_format", StructuralTagConstraint(ordered));
    }
    if (type == "json_schema") {
      JsonSchema(format, ordered);
    } else if (type == "json_object" && format.Value("schema") != nullptr) {  // llama.cpp
      Take(format, ordered, "schema", "response_format.schema", &ConstraintReader::Schema);
    } else if (type == "json_object") {
      Keep("response_format", JsonObjectConstraint());
    } else if (type != "text") {
      format.FailField("type",
                       "must be \"text\", \"json_object\", \"json_schema\" or \"structural_tag\"");
    }
    body_.Fail(format.Finish(/*permissive=*/false, nullptr));
  }

  // {"name", "description", "schema", "strict"}. The schema is kept to whether it is strict or not.
  void JsonSchema(ObjectReader& format, const OrderedJson& ordered) {
    const Json* value = format.Value("json_schema");
    if (value == nullptr || !value->is_object()) {
      return format.FailField("json_schema", "must be an object with 'schema'");
    }
    ObjectReader inner(*value, "response_format.json_schema.");
    inner.String("name");
    inner.String("description");
    inner.Bool("strict");
    if (inner.Value("schema") == nullptr) inner.FailField("schema", "is missing");
    body_.Fail(inner.Finish(/*permissive=*/false, nullptr));
    Take(inner, *Find(ordered, "json_schema"), "schema", "response_format.json_schema.schema",
         &ConstraintReader::Schema);
  }

  // vLLM's {"json" | "regex" | "choice" | "grammar" | "json_object" | "structural_tag"}.
  void StructuredOutputs() {
    const Json* value = body_.Value("structured_outputs");
    if (value == nullptr) return;
    if (!value->is_object()) return body_.FailField("structured_outputs", "must be an object");
    const OrderedJson& ordered = *Find(ordered_, "structured_outputs");
    ObjectReader outputs(*value, "structured_outputs.");
    const std::size_t before = found_ ? 1 : 0;
    Take(outputs, ordered, "json", "structured_outputs.json", &ConstraintReader::Schema);
    Take(outputs, ordered, "regex", "structured_outputs.regex", &ConstraintReader::Regex);
    Take(outputs, ordered, "choice", "structured_outputs.choice", &ConstraintReader::Choice);
    Take(outputs, ordered, "grammar", "structured_outputs.grammar", &ConstraintReader::Grammar);
    Take(outputs, ordered, "structural_tag", "structured_outputs.structural_tag",
         &ConstraintReader::Tag);
    if (outputs.Bool("json_object").value_or(false)) {
      Keep("structured_outputs.json_object", JsonObjectConstraint());
    }
    outputs.UnsupportedUnless("disable_any_whitespace", {false});
    outputs.UnsupportedUnless("disable_additional_properties", {false});
    outputs.UnsupportedUnless("whitespace_pattern", {});
    outputs.Ignored({"_backend", "_backend_was_auto", "disable_fallback"});
    body_.Fail(outputs.Finish(/*permissive=*/false, nullptr));
    if (body_.ok() && !found_ && before == 0) {
      body_.FailField("structured_outputs",
                      "must have one of 'json', 'regex', 'choice', 'grammar', 'json_object' and "
                      "'structural_tag'");
    }
  }

  ObjectReader& body_;
  const OrderedJson& ordered_;
  std::optional<Constraint> found_;
  std::string found_path_;
};

}  // namespace

void ReadConstraint(std::string_view body, ObjectReader& reader, RequestParameters& parameters) {
  std::string_view first;
  for (const std::string_view name : Names()) {
    if (reader.Value(name) != nullptr && first.empty()) first = name;
  }
  if (first.empty() || !reader.ok()) return;
  const absl::StatusOr<OrderedJson> ordered = ParseOrderedMembers(body, Names());
  if (!ordered.ok()) return reader.FailField(first, std::string(ordered.status().message()));
  ConstraintReader(reader, *ordered).Read(parameters);
}

}  // namespace flotilla::router
