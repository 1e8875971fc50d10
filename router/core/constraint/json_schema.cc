#include "router/core/constraint/json_schema.h"

#include <string>

#include "common/types/text.h"
#include "router/core/constraint/schema_walk.h"

namespace flotilla::router {

absl::StatusOr<OrderedJson> NormalSchema(const OrderedJson& schema) {
  return SchemaWalk(schema).Run();
}

absl::StatusOr<Constraint> JsonSchemaConstraint(const OrderedJson& schema) {
  const absl::StatusOr<OrderedJson> written = NormalSchema(schema);
  if (!written.ok()) return written.status();
  Constraint constraint{Constraint::Kind::kJsonSchema, written->dump()};
  if (constraint.text.size() > Constraint::kMaxBytes) {
    return InvalidArgument("the schema has ", constraint.text.size(),
                           " bytes as it is compiled; at most ", Constraint::kMaxBytes,
                           " are allowed");
  }
  return constraint;
}

absl::StatusOr<Constraint> JsonSchemaConstraintFromText(std::string_view schema) {
  const absl::StatusOr<OrderedJson> json = ParseOrderedJson(schema);
  if (!json.ok()) return InvalidArgument("the schema ", std::string(json.status().message()));
  return JsonSchemaConstraint(*json);
}

}  // namespace flotilla::router
