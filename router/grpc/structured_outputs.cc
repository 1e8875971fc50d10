#include "router/grpc/structured_outputs.h"

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

absl::StatusOr<Constraint> Choice(const v1::StructuredOutputs::Choice& choice) {
  // Before they are copied.
  if (static_cast<std::size_t>(choice.texts_size()) > kMaxChoices) {
    return InvalidArgument("there are ", choice.texts_size(), " choices; 1 to ", kMaxChoices,
                           " are allowed");
  }
  return ChoiceConstraint({choice.texts().begin(), choice.texts().end()});
}

absl::StatusOr<Constraint> Read(const v1::StructuredOutputs& outputs) {
  switch (outputs.constraint_case()) {
    case v1::StructuredOutputs::kJsonSchema:
      return JsonSchemaConstraintFromText(outputs.json_schema());
    case v1::StructuredOutputs::kJsonObject:
      if (!outputs.json_object()) return InvalidArgument("must be true");
      return JsonObjectConstraint();
    case v1::StructuredOutputs::kRegex:
      return RegexConstraint(outputs.regex());
    case v1::StructuredOutputs::kGrammar:
      return GrammarConstraint(outputs.grammar());
    case v1::StructuredOutputs::kChoice:
      return Choice(outputs.choice());
    case v1::StructuredOutputs::kStructuralTag:
      return StructuralTagConstraintFromText(outputs.structural_tag());
    case v1::StructuredOutputs::CONSTRAINT_NOT_SET:
      break;
  }
  return InvalidArgument("one of its fields is required");
}

}  // namespace

absl::Status ReadConstraint(const v1::StructuredOutputs& outputs, RequestParameters& parameters) {
  std::string field = "structured_outputs";
  const auto* oneof = outputs.GetDescriptor()->FindOneofByName("constraint");
  if (const auto* set = outputs.GetReflection()->GetOneofFieldDescriptor(outputs, oneof)) {
    field += "." + set->name();
  }
  absl::StatusOr<Constraint> constraint = Read(outputs);
  if (!constraint.ok()) {
    return InvalidField(field, Cat(field, ": ", std::string(constraint.status().message())));
  }
  parameters.constraint = *std::move(constraint);
  parameters.constraint_field = std::move(field);
  return absl::OkStatus();
}

}  // namespace flotilla::router
