#include "router/http/openapi.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "common/types/parameters.h"
#include "common/types/text.h"
#include "nlohmann/json.hpp"
#include "router/generate_request.h"
#include "router/http/json_text.h"

namespace flotilla::router {

// The text of router/http/openapi.json. CMake makes the source of this function.
std::string_view OpenApiSkeleton();

namespace {

using OrderedJson = nlohmann::ordered_json;

// What an operation may answer besides 200, if the skeleton says nothing else.
constexpr const char* kErrors[] = {"400", "401", "403", "404", "405", "408", "413",
                                   "415", "429", "431", "500", "503", "504"};

OrderedJson Reference(std::string_view schema) {
  return {{"$ref", Cat("#/components/schemas/", schema)}};
}

// A number as short as it is in the table of parameters, where some are floats.
OrderedJson NumberOf(double value) {
  if (value == std::floor(value)) return static_cast<std::int64_t>(value);
  std::string text;
  AppendJsonFloat(static_cast<float>(value), text);
  return OrderedJson::parse(text);
}

// The upper bound of a number: a constant, or what it depends on.
std::variant<double, std::string_view> MostOf(const Range& range) {
  switch (range.limit) {
    case Limit::kVocabulary:
      return "the size of the vocabulary";
    case Limit::kContext:
      return "the model's context";
    case Limit::kMaxTokens:
      return "`max_tokens`";
    case Limit::kSequences:
      return "the server's `--max-seqs`";
    case Limit::kTimeout:
      return static_cast<double>(RequestLimits().max_timeout_ms);
    case Limit::kNone:
      break;
  }
  return range.high;
}

OrderedJson NumberSchema(const Parameter& row, std::string_view type) {
  OrderedJson schema = {{"type", {type, "null"}}};
  std::string description;
  const std::optional<double> other = row.exceptions.also_default;
  schema[row.range.above_low ? "exclusiveMinimum" : "minimum"] =
      NumberOf(std::min(row.range.low, other.value_or(row.range.low)));
  const auto most = MostOf(row.range);
  if (const auto* number = std::get_if<double>(&most)) {
    schema["maximum"] = NumberOf(*number);
  } else {
    description = Cat("At most ", std::get<std::string_view>(most), ".");
  }
  if (row.default_value) schema["default"] = NumberOf(*row.default_value);
  if (other) description += Cat(description.empty() ? "" : " ", *other, " stands for the default.");
  if (!description.empty()) schema["description"] = std::move(description);
  return schema;
}

// Each overload makes the schema of the parameters whose member has the type of the second
// argument, which is what a client that leaves the parameter out asks for.
OrderedJson SchemaOf(const Parameter& row, const std::optional<double>&) {
  return NumberSchema(row, "number");
}
OrderedJson SchemaOf(const Parameter& row, const std::optional<std::int64_t>&) {
  return NumberSchema(row, "integer");
}
OrderedJson SchemaOf(const Parameter&, const std::optional<std::uint64_t>&) {
  return {{"type", {"integer", "null"}},
          {"minimum", std::numeric_limits<std::int64_t>::min()},
          {"maximum", std::numeric_limits<std::uint64_t>::max()}};
}
OrderedJson SchemaOf(const Parameter&, bool value) {
  OrderedJson schema = Reference("Flag");
  schema["default"] = value;
  return schema;
}
OrderedJson SchemaOf(const Parameter&, const std::string&) { return Reference("Label"); }
OrderedJson SchemaOf(const Parameter& row, const std::vector<std::string>&) {
  const SizeBound bound = BoundOf(row, RequestLimits());
  OrderedJson text = {{"type", "string"}, {"minLength", 1}, {"maxLength", bound.most_bytes}};
  OrderedJson texts = {{"type", "array"}, {"maxItems", bound.most}, {"items", text}};
  text["type"] = {"string", "null"};
  return {{"anyOf", {std::move(text), std::move(texts)}}};
}
OrderedJson SchemaOf(const Parameter& row, const std::vector<std::int64_t>&) {
  return {{"type", {"array", "null"}},
          {"maxItems", BoundOf(row, RequestLimits()).most},
          {"items", {{"type", "integer"}, {"minimum", 0}}}};
}
OrderedJson SchemaOf(const Parameter& row, const std::vector<std::pair<std::int64_t, double>>&) {
  return {{"type", {"object", "null"}},
          {"propertyNames", {{"pattern", "^[0-9]+$"}}},
          {"additionalProperties",
           {{"type", "number"},
            {"minimum", NumberOf(row.range.low)},
            {"maximum", NumberOf(row.range.high)}}},
          {"maxProperties", BoundOf(row, RequestLimits()).most}};
}
OrderedJson SchemaOf(const Parameter&, const std::optional<BeamOptions::EarlyStopping>&) {
  return {{"enum", {true, false, "never", nullptr}}};
}

void AddParameters(OrderedJson& properties) {
  const RequestParameters absent;
  for (const Parameter& row : kParameters) {
    if (!row.exceptions.http) continue;
    properties[std::string(row.name)] =
        std::visit([&](auto member) { return SchemaOf(row, absent.*member); }, row.asked);
  }
}

// Puts the properties of the schemas that `allOf` names into the schema itself, because those that
// it does not have are refused. What it says of one of them by itself counts.
void TakeProperties(const OrderedJson& document, OrderedJson& schema) {
  const auto parts = schema.find("allOf");
  if (parts == schema.end()) return;
  OrderedJson properties = OrderedJson::object();
  for (const OrderedJson& part : *parts) {
    const auto& reference = part.at("$ref").get_ref<const std::string&>();
    properties.update(document.at(OrderedJson::json_pointer(reference.substr(1)))["properties"]);
  }
  properties.update(schema["properties"], /*merge_objects=*/true);
  schema["properties"] = std::move(properties);
  schema.erase("allOf");
}

void AddErrors(OrderedJson& operation) {
  OrderedJson& responses = operation["responses"];
  if (responses.size() > 1) return;  // it has errors of its own
  for (const char* status : kErrors) {
    responses[status] = {{"$ref", "#/components/responses/Error"}};
  }
}

// The skeleton is ours, so an error in it is one of the program.
std::string MakeText() {
  OrderedJson document = OrderedJson::parse(OpenApiSkeleton());
  OrderedJson& schemas = document["components"]["schemas"];
  AddParameters(schemas["Sampling"]["properties"]);
  for (OrderedJson& schema : schemas) TakeProperties(document, schema);
  for (OrderedJson& path : document["paths"]) {
    for (OrderedJson& operation : path) AddErrors(operation);
  }
  return document.dump();
}

}  // namespace

const std::string& OpenApiText() {
  static const std::string text = MakeText();
  return text;
}

}  // namespace flotilla::router
