// Objects: which names an answer may have, which it must have, and how many.
#include <algorithm>
#include <set>
#include <utility>

#include "common/types/text.h"
#include "router/core/constraint/json_schema.h"
#include "router/core/constraint/schema_check.h"
#include "router/core/constraint/schema_overlap.h"
#include "router/core/constraint/schema_walk.h"

namespace flotilla::router {
namespace {

constexpr std::int64_t kPropertyCap = 65'536;
// XGrammar's rules for a number of properties grow with the square of the names.
constexpr std::int64_t kMaxCounted = 50;
// The characters of all names that a free name must differ from. They become an expression, in
// which groups lie as deep as a name is long.
constexpr std::size_t kMaxOtherNames = 4096, kMaxOtherName = 64;

}  // namespace

struct SchemaWalk::ObjectParts {
  // Named properties, in the client's order; `false` for one that must not be there.
  std::vector<std::pair<std::string, OrderedJson>> properties;
  std::set<std::string, std::less<>> names;  // of `properties`
  std::vector<std::string> required;
  // What other properties hold; `false`: there are none. `asked`: the schema says so.
  OrderedJson others = false;
  bool asked = false;
  // What the names of other properties match, if not anything.
  std::optional<std::string> pattern;
};

OrderedJson SchemaWalk::Object(const Schema& schema) {
  ObjectParts parts;
  ReadProperties(schema, parts);
  ReadRequired(schema, parts);
  if (ok()) ReadOthers(schema, parts);
  if (ok()) ReadPatterns(schema, parts);
  if (ok()) ReadNames(schema, parts);
  if (ok()) AddRequired(schema, parts);
  return ok() ? WriteObject(schema, parts) : OrderedJson(false);
}

void SchemaWalk::ReadProperties(const Schema& schema, ObjectParts& parts) {
  const OrderedJson* properties = ObjectOf(schema, "properties");
  if (properties == nullptr) return;
  for (const auto& [name, property] : properties->get_ref<const OrderedJson::object_t&>()) {
    if (!ok()) return;
    parts.names.insert(name);
    parts.properties.emplace_back(name, WriteUnder(schema, "properties", name));
  }
}

void SchemaWalk::ReadRequired(const Schema& schema, ObjectParts& parts) {
  const OrderedJson* required = ListOf(schema, "required");
  if (required == nullptr) return;
  std::set<std::string> seen;
  for (const OrderedJson& name : *required) {
    if (!name.is_string() || !seen.insert(name.get<std::string>()).second) {
      Refuse(schema.place, "required", "must be a list of different strings");
      return;
    }
    parts.required.push_back(name.get<std::string>());
  }
}

// An object whose schema names properties has no others unless the schema asks for them.
void SchemaWalk::ReadOthers(const Schema& schema, ObjectParts& parts) {
  for (const std::string_view keyword : {"additionalProperties", "unevaluatedProperties"}) {
    if (!schema.json.contains(std::string(keyword))) continue;
    parts.others = WriteUnder(schema, keyword);
    parts.asked = true;
    return;
  }
  const bool names =
      schema.json.contains("properties") || schema.json.contains("patternProperties");
  if (!names) parts.others = OrderedJson::object();
}

void SchemaWalk::ReadPatterns(const Schema& schema, ObjectParts& parts) {
  const OrderedJson* patterns = ObjectOf(schema, "patternProperties");
  if (patterns == nullptr || patterns->empty()) return;
  if (patterns->size() > 1) {
    Refuse(schema.place, "patternProperties", "is supported only with one pattern");
  } else if (!parts.properties.empty() || !parts.required.empty()) {
    Refuse(schema.place, "patternProperties",
           "is not supported beside \"properties\" or \"required\"");
  } else if (!parts.others.is_boolean()) {
    Refuse(schema.place, "patternProperties",
           "is supported only if \"additionalProperties\" is false or absent");
  } else if (schema.json.contains("propertyNames")) {
    Refuse(schema.place, "patternProperties", "is not supported beside \"propertyNames\"");
  }
  if (!ok()) return;
  const std::string& pattern = patterns->get_ref<const OrderedJson::object_t&>().front().first;
  // Python's validator takes an empty pattern for none.
  if (pattern.empty()) {
    Refuse(schema.place, "patternProperties", "is supported only with a pattern that is not empty");
    return;
  }
  const auto node = ParseRegex(pattern, RegexUse::kJsonString);
  if (!node.ok()) {
    Refuse(schema.place, "patternProperties", std::string(node.status().message()));
    return;
  }
  parts.others = WriteUnder(schema, "patternProperties", pattern);
  parts.pattern = Cat("^", WriteRegex(*node), "$");
}

// XGrammar holds no named property to "propertyNames", so its schema is taken apart here.
void SchemaWalk::ReadNames(const Schema& schema, ObjectParts& parts) {
  const OrderedJson* names = Find(schema.json, "propertyNames");
  if (names == nullptr) return;
  const Place place = Place::At(schema.place, "propertyNames");
  // After its references, which may name an enumeration.
  for (int step = 0; step < kMaxSchemaDepth && names->contains("$ref"); ++step) {
    const OrderedJson& reference = *Find(*names, "$ref");
    const auto target = Resolve(root_, reference.is_string() ? reference.get<std::string>() : "");
    if (!target.ok()) {
      Refuse(place, "$ref", std::string(target.status().message()));
      return;
    }
    names = *target;
  }
  if (!TakeRoom(*names, names_room_)) {
    Refuse(place, "", "is too large, with what it and others refer to");
    return;
  }
  OrderedJson typed = *names;
  if (typed.is_object() && !typed.contains("type") && !typed.contains("enum") &&
      !typed.contains("const")) {
    typed["type"] = "string";
  }
  const OrderedJson written = Write({typed, place, schema.depth + 1});
  if (!ok()) return;
  const OrderedJson *values = Find(written, "enum"), *pattern = Find(written, "pattern");
  const OrderedJson none = OrderedJson::array();
  if (written.is_boolean()) values = &none;
  if (written == OrderedJson::object() || written == OrderedJson{{"type", "string"}}) return;
  if (values == nullptr &&
      (pattern == nullptr || !parts.properties.empty() || !parts.required.empty())) {
    Refuse(
        schema.place, "propertyNames",
        "is supported as \"enum\", or as a pattern or format of strings without \"properties\" and "
        "\"required\"");
    return;
  }
  if (values == nullptr) {
    if (!parts.others.is_boolean()) parts.pattern = pattern->get<std::string>();
    return;
  }
  // The enumeration names all properties that there can be.
  std::set<std::string> allowed;
  for (const OrderedJson& value : *values) {
    if (!value.is_string()) continue;  // is no name
    const auto& name = value.get_ref<const std::string&>();
    allowed.insert(name);
    if (parts.names.insert(name).second && !parts.others.is_boolean()) {
      AddOther(schema, "propertyNames", name, parts.others, parts);
    }
  }
  for (auto& [name, property] : parts.properties) {
    if (!allowed.contains(name)) property = false;
  }
  parts.others = false;
  parts.asked = true;
}

// Names that are required without being properties are others, which there may be if the schema
// does not say that there are none.
void SchemaWalk::AddRequired(const Schema& schema, ObjectParts& parts) {
  const OrderedJson other = parts.asked ? parts.others : OrderedJson::object();
  for (const std::string& name : parts.required) {
    if (parts.names.insert(name).second) AddOther(schema, "required", name, other, parts);
  }
}

// Adds a property with a copy of the schema of others. There may be many of them, and of theirs.
void SchemaWalk::AddOther(const Schema& schema, std::string_view keyword, const std::string& name,
                          const OrderedJson& other, ObjectParts& parts) {
  if (!ok()) return;
  if (name.size() > room_ || !TakeRoom(other, room_ -= name.size())) {
    Refuse(schema.place, keyword,
           "makes the schema too large, which has the schema of other properties for each name");
    return;
  }
  parts.properties.emplace_back(name, other);
}

OrderedJson SchemaWalk::WriteObject(const Schema& schema, ObjectParts& parts) {
  const std::optional<std::int64_t> most = Count(schema, "maxProperties", kPropertyCap);
  std::int64_t least = Count(schema, "minProperties", kMaxSchemaCount + 1).value_or(0);
  if (!ok()) return false;
  // The names differ, so they are appended: the library looks through all names for each one.
  OrderedJson properties = OrderedJson::object();
  std::set<std::string_view> kept;
  for (auto& [name, property] : parts.properties) {
    if (property.is_boolean()) continue;
    kept.insert(name);
    properties.get_ref<OrderedJson::object_t&>().emplace_back(name, std::move(property));
  }
  for (const std::string& name : parts.required) {
    if (!kept.contains(name)) return false;
  }
  const auto required = static_cast<std::int64_t>(parts.required.size());
  const bool open = !parts.others.is_boolean();
  if (least <= required) least = 0;
  // The names of others may come twice, and then count as one.
  if (open && least > 1) {
    return Refuse(schema.place, "minProperties",
                  "of more than 1 is supported only for properties that are named");
  }
  const auto named = static_cast<std::int64_t>(properties.size());
  if ((most && (least > *most || required > *most)) || (!open && least > named)) return false;

  if (named > kMaxCounted && (least > 0 || (most && (open || *most < named)))) {
    return Refuse(schema.place, least > 0 ? "minProperties" : "maxProperties",
                  Cat("is supported beside ", kMaxCounted, " \"properties\" at most"));
  }

  OrderedJson written{{"type", "object"}};
  if (open && !parts.names.empty()) {
    std::vector<std::u32string> names;
    std::size_t characters = 0;
    for (const std::string& name : parts.names) {
      names.push_back(DecodeUtf8(name).value_or(std::u32string()));
      characters += names.back().size();
      if (names.back().size() > kMaxOtherName || characters > kMaxOtherNames) {
        return Refuse(schema.place,
                      schema.json.contains("additionalProperties") ? "additionalProperties"
                                                                   : "unevaluatedProperties",
                      Cat("is supported beside names of up to ", kMaxOtherName, " characters, ",
                          kMaxOtherNames, " in all"));
      }
    }
    parts.pattern = Cat("^", WriteRegex(AllBut(names)), "$");
  }
  if (!properties.empty()) written["properties"] = std::move(properties);
  if (!parts.required.empty()) written["required"] = parts.required;
  if (parts.pattern && open) {
    written["patternProperties"] = {{*parts.pattern, std::move(parts.others)}};
    written["additionalProperties"] = false;
  } else {
    written["additionalProperties"] = std::move(parts.others);
  }
  if (least > 0) written["minProperties"] = least;
  if (most && (open || *most < named)) written["maxProperties"] = *most;
  return written;
}

}  // namespace flotilla::router
