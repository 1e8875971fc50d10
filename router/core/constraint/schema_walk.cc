#include "router/core/constraint/schema_walk.h"

#include <algorithm>
#include <utility>

#include "common/types/text.h"
#include "router/core/constraint/json_schema.h"
#include "router/core/constraint/keywords.h"
#include "router/core/constraint/schema_check.h"
#include "router/core/constraint/schema_overlap.h"

namespace flotilla::router {
namespace {

struct Dialect {
  std::string_view uri;
  bool old;
};
constexpr Dialect kDialects[] = {{"https://json-schema.org/draft/2020-12/schema", false},
                                 {"https://json-schema.org/draft/2019-09/schema", true},
                                 {"http://json-schema.org/draft-07/schema", true},
                                 {"http://json-schema.org/draft-06/schema", true}};

const Dialect* DialectOf(const OrderedJson& uri) {
  if (!uri.is_string()) return nullptr;
  std::string_view name = uri.get_ref<const std::string&>();
  if (name.ends_with('#')) name.remove_suffix(1);
  const auto* const row = std::find_if(std::begin(kDialects), std::end(kDialects),
                                       [name](const Dialect& each) { return each.uri == name; });
  return row == std::end(kDialects) ? nullptr : row;
}

bool IsKeyword(std::string_view name, KeywordUse use) {
  const Keyword* word = FindKeyword(name);
  return word != nullptr && word->use == use;
}

}  // namespace

absl::StatusOr<OrderedJson> SchemaWalk::Run() {
  const Place place{nullptr, ""};
  OrderedJson written = Write({root_, place, 1});
  OrderedJson definitions = OrderedJson::object();
  for (std::size_t i = 0; i < targets_.size() && ok(); ++i) {
    const Place there{nullptr, target_places_[i]};
    OrderedJson target = Write({*targets_[i], there, 1});
    if (ok() && target.is_boolean()) Refuse(there, "", "is a schema for which nothing is valid");
    definitions.emplace(std::to_string(i), std::move(target));
  }
  if (ok() && written.is_boolean()) Refuse(place, "", "is a schema for which nothing is valid");
  if (!ok()) return status_;
  if (!definitions.empty()) written.emplace("$defs", std::move(definitions));
  for (const UnendingSchema& unending : FindUnending(written)) {
    const std::string_view name =
        unending.definition ? std::string_view(target_places_[*unending.definition]) : "";
    const Place there{nullptr, name};
    Refuse(there, "$ref",
           unending.without_value ? "comes back to its own schema before any value begins"
                                  : "comes back to its own schema in all its values, so none ends");
  }
  if (!ok()) return status_;
  TellApart(written);
  return written;
}

OrderedJson SchemaWalk::Write(const Schema& schema) {
  if (!ok()) return false;
  const OrderedJson& json = schema.json;
  if (++subschemas_ > kMaxSubschemas) {
    return Refuse(schema.place, "", Cat("is one schema of more than ", kMaxSubschemas));
  }
  if (schema.depth > kMaxSchemaDepth) {
    return Refuse(schema.place, "", Cat("is nested deeper than ", kMaxSchemaDepth, " schemas"));
  }
  if (json.is_boolean()) return json.get<bool>() ? OrderedJson::object() : OrderedJson(false);
  if (!json.is_object()) return Refuse(schema.place, "", "must be an object, true or false");
  CheckKeywords(schema);
  for (const auto& [name, value] : json.get_ref<const OrderedJson::object_t&>()) {
    if (IsKeyword(name, KeywordUse::kCombination)) return Combination(schema, name);
  }
  const unsigned types = TypesAsked(schema);
  if (!ok()) return false;
  if (types == kAllTypes) return OrderedJson::object();
  OrderedJson options = OrderedJson::array();
  for (unsigned type = 1; type < kAllTypes; type <<= 1) {
    if ((types & type) == 0) continue;
    OrderedJson option = OfType(schema, type);
    if (!option.is_boolean()) options.push_back(std::move(option));
  }
  if (options.empty()) return false;
  if (options.size() == 1) return std::move(options[0]);
  return {{"anyOf", std::move(options)}};
}

OrderedJson SchemaWalk::WriteUnder(const Schema& schema, std::string_view keyword) {
  const Place place = Place::At(schema.place, keyword);
  return Write({*Find(schema.json, keyword), place, schema.depth + 1});
}

OrderedJson SchemaWalk::WriteUnder(const Schema& schema, std::string_view keyword,
                                   std::string_view name) {
  const Place list = Place::At(schema.place, keyword), place = Place::At(list, name);
  return Write({*Find(*Find(schema.json, keyword), name), place, schema.depth + 1});
}

OrderedJson SchemaWalk::WriteUnder(const Schema& schema, std::string_view keyword,
                                   std::size_t index) {
  const Place list = Place::At(schema.place, keyword), place = Place::At(list, index);
  return Write({(*Find(schema.json, keyword))[index], place, schema.depth + 1});
}

void SchemaWalk::CheckKeywords(const Schema& schema) {
  for (const auto& [name, value] : schema.json.get_ref<const OrderedJson::object_t&>()) {
    const Keyword* word = FindKeyword(name);
    if (word == nullptr) {
      Refuse(schema.place, name, "is no keyword that is known here");
    } else if (word->use == KeywordUse::kRefused) {
      Refuse(schema.place, name, word->reason.empty() ? "is not supported" : word->reason);
    } else if (name == "$schema") {
      const Dialect* dialect = DialectOf(value);
      if (dialect == nullptr) Refuse(schema.place, name, "names a dialect that is not supported");
      if (dialect != nullptr && dialect->old) old_dialect_ = true;
    } else if (name == "$id" && &schema.json != &root_) {
      Refuse(schema.place, name, "is supported only in the outermost schema");
    }
    if (old_dialect_ && name == "prefixItems") {
      Refuse(schema.place, name, "is no keyword of the dialect that \"$schema\" names");
    }
  }
}

// A keyword beside which XGrammar ignores all others.
OrderedJson SchemaWalk::Combination(const Schema& schema, std::string_view keyword) {
  const bool values = keyword == "enum" || keyword == "const";
  for (const auto& [name, value] : schema.json.get_ref<const OrderedJson::object_t&>()) {
    if (name == keyword || IsKeyword(name, KeywordUse::kAnnotation)) continue;
    if (name == "type" && keyword != "$ref") continue;
    return Refuse(schema.place, name, Cat("beside \"", keyword, "\" is not supported"));
  }
  if (keyword == "$ref") return Reference(schema);
  if (!values && schema.json.contains("type")) {
    const unsigned types = TypesAsked(schema);
    const unsigned asked = types & kNumberType ? types | kIntegerType : types;
    OrderedJson without = schema.json;
    without.erase("type");
    if ((overlap_.TypesOf(without) & ~asked) != 0) {
      return Refuse(schema.place, "type",
                    Cat("beside \"", keyword, "\" is supported only if all options have it"));
    }
  }
  return values ? Values(schema, keyword) : Options(schema, keyword);
}

OrderedJson SchemaWalk::Reference(const Schema& schema) {
  const OrderedJson& reference = *Find(schema.json, "$ref");
  if (!reference.is_string()) return Refuse(schema.place, "$ref", "must be a string");
  const std::string& uri = reference.get_ref<const std::string&>();
  const auto target = Resolve(root_, uri);
  if (!target.ok()) return Refuse(schema.place, "$ref", std::string(target.status().message()));
  if (*target == &root_) return {{"$ref", "#"}};
  const auto [number, is_new] = numbers_.emplace(*target, targets_.size());
  if (is_new) {
    targets_.push_back(*target);
    target_places_.push_back(ShownName(std::string_view(uri).substr(1)));
  }
  return {{"$ref", Cat("#/$defs/", number->second)}};
}

OrderedJson SchemaWalk::Values(const Schema& schema, std::string_view keyword) {
  const OrderedJson& value = *Find(schema.json, keyword);
  OrderedJson values = keyword == "const" ? OrderedJson::array({value}) : value;
  if (!values.is_array() || values.empty()) {
    return Refuse(schema.place, keyword, "must be a list of at least one value");
  }
  const unsigned types = schema.json.contains("type") ? TypesAsked(schema) : kAllTypes;
  const unsigned asked = types & kNumberType ? types | kIntegerType : types;
  for (const OrderedJson& each : values) {
    if (ok() && (TypeOfValue(each) & asked) == 0) {
      return Refuse(schema.place, keyword, "has a value that is not of the \"type\" beside it");
    }
  }
  if (!HasOnlyExactNumbers(values)) {
    return Refuse(schema.place, keyword, "has a number that 64 bits do not hold");
  }
  return {{"enum", std::move(values)}};
}

OrderedJson SchemaWalk::Options(const Schema& schema, std::string_view keyword) {
  const OrderedJson* options = ListOf(schema, keyword);
  if (!ok()) return false;
  if (options->empty()) return Refuse(schema.place, keyword, "must have at least one schema");
  if (keyword == "allOf" && options->size() > 1) {
    return Refuse(schema.place, keyword, "is supported only with one schema");
  }
  OrderedJson written = OrderedJson::array();
  for (std::size_t i = 0; i < options->size(); ++i) {
    OrderedJson option = WriteUnder(schema, keyword, i);
    if (!ok()) return false;
    // Whatever is valid for one is valid for no other.
    for (std::size_t k = 0; k < i && keyword == "oneOf"; ++k) {
      if (!overlap_.Disjoint((*options)[k], (*options)[i])) {
        return Refuse(schema.place, keyword,
                      Cat("is supported only if no two of its schemas overlap, and ", k, " and ", i,
                          " may: they need other types, or a property that both require with "
                          "other values"));
      }
    }
    if (!option.is_boolean()) written.push_back(std::move(option));
  }
  if (written.empty()) return false;
  if (written.size() == 1) return std::move(written[0]);
  return {{"anyOf", std::move(written)}};
}

// The types of "type"; without it, those that the other keywords are about. Never none, unless
// "type" is refused.
unsigned SchemaWalk::TypesAsked(const Schema& schema) {
  unsigned types = 0;
  if (const OrderedJson* type = Find(schema.json, "type")) {
    const OrderedJson names = type->is_array() ? *type : OrderedJson::array({*type});
    for (const OrderedJson& name : names) {
      const unsigned named = name.is_string() ? TypeNamed(name.get_ref<const std::string&>()) : 0;
      if (named == 0 || (types & named) != 0) types = kAllTypes + 1;
      types |= named;
    }
    if (types == 0 || types > kAllTypes) {
      Refuse(schema.place, "type", "must be a type of JSON, or a list of different ones");
      return 0;
    }
  } else {
    for (const auto& [name, value] : schema.json.get_ref<const OrderedJson::object_t&>()) {
      if (const Keyword* word = FindKeyword(name)) types |= word->types;
    }
    if (types == 0) return kAllTypes;
  }
  return types & kNumberType ? types & ~kIntegerType : types;
}

OrderedJson SchemaWalk::OfType(const Schema& schema, unsigned type) {
  switch (type) {
    case kIntegerType:
      return Integer(schema);
    case kNumberType:
      return Number(schema);
    case kStringType:
      return String(schema);
    case kArrayType:
      return Array(schema);
    case kObjectType:
      return Object(schema);
    case kNullType:
      return {{"type", "null"}};
    default:
      return {{"type", "boolean"}};
  }
}

OrderedJson SchemaWalk::Refuse(const Place& place, std::string_view keyword, std::string_view why) {
  if (!status_.ok()) return false;
  const std::string pointer = place.Pointer();
  status_ =
      InvalidArgument(pointer, pointer.empty() ? "" : ": ",
                      keyword.empty() ? "this" : Cat("\"", ShownName(keyword), "\""), " ", why);
  return false;
}

const OrderedJson* SchemaWalk::ObjectOf(const Schema& schema, std::string_view keyword) {
  const OrderedJson* value = Find(schema.json, keyword);
  if (value != nullptr && !value->is_object()) {
    Refuse(schema.place, keyword, "must be an object");
    return nullptr;
  }
  return value;
}

const OrderedJson* SchemaWalk::ListOf(const Schema& schema, std::string_view keyword) {
  const OrderedJson* value = Find(schema.json, keyword);
  if (value != nullptr && !value->is_array()) {
    Refuse(schema.place, keyword, "must be a list");
    return nullptr;
  }
  return value;
}

std::optional<std::int64_t> SchemaWalk::Count(const Schema& schema, std::string_view keyword,
                                              std::int64_t cap) {
  const OrderedJson* value = Find(schema.json, keyword);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || TypeOfValue(*value) != kIntegerType || value->get<double>() < 0) {
    Refuse(schema.place, keyword, "must be a whole number of at least 0");
    return std::nullopt;
  }
  const double count = value->get<double>();
  return count > static_cast<double>(cap) ? cap : static_cast<std::int64_t>(count);
}

}  // namespace flotilla::router
