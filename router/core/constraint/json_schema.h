// From the JSON schema of a client to a schema that XGrammar keeps exactly.
//
// XGrammar ignores what it cannot express, with a warning at most: most keywords beside "enum",
// "anyOf" or "$ref", keywords without their "type", lengths beside a pattern, and more. So no
// schema of a client reaches it. The router reads the schema by the table in keywords.cc, refuses
// by name what it cannot keep, and writes another schema in the few forms that XGrammar keeps:
//
//   {}  {"$ref"}  {"enum"}  {"anyOf"}  {"type":"null"}  {"type":"boolean"}
//   {"type":"string", "pattern"}
//   {"type":"integer", "minimum", "maximum", "multipleOf"}
//   {"type":"number", "minimum" | "exclusiveMinimum", "maximum" | "exclusiveMaximum"}
//   {"type":"array", "prefixItems", "items", "minItems", "maxItems"}
//   {"type":"object", "properties", "required", "additionalProperties", "patternProperties",
//    "propertyNames", "minProperties", "maxProperties"}
//
// What is valid for the written schema is valid for the client's. The converse need not hold: an
// object has no properties but those that are named, unless the schema asks for others; a keyword
// without "type" stands for its type; and a string with a length or a pattern has no escapes.
//
// Equal schemas give equal texts, whatever their annotations. Pure functions.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/types/constraint.h"
#include "router/core/constraint/ordered_json.h"

namespace flotilla::router {

// Schemas within schemas, subschemas in all, and the longest list of an array or least length that
// an answer can be held to.
inline constexpr int kMaxSchemaDepth = 16;
inline constexpr int kMaxSubschemas = 1000;
inline constexpr int kMaxSchemaCount = 10'000;

// The schema that is written. INVALID_ARGUMENT names the place in the client's schema as a JSON
// pointer, the keyword and the reason: `/properties/a: "not" is not supported`.
absl::StatusOr<OrderedJson> NormalSchema(const OrderedJson& schema);

// NormalSchema as a constraint. INVALID_ARGUMENT also for a text of more than
// Constraint::kMaxBytes.
absl::StatusOr<Constraint> JsonSchemaConstraint(const OrderedJson& schema);
absl::StatusOr<Constraint> JsonSchemaConstraintFromText(std::string_view schema);

}  // namespace flotilla::router
