// Structural tags: the part of constraints.h that knows XGrammar's formats.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "common/types/text.h"
#include "router/core/constraint/constraints.h"
#include "router/core/constraint/json_schema.h"
#include "router/core/constraint/regex.h"
#include "router/core/constraint/schema_document.h"
#include "router/core/constraint/xml_schema.h"

namespace flotilla::router {
namespace {

// What the value of a field is.
enum class Value : std::uint8_t {
  kText,      // a string
  kFullText,  // a string that is not empty
  kTexts,     // a list of strings that are not empty
  kEnds,      // a string or a list of strings
  kFlag,      // true or false
  kFormat,
  kFormats,
  kTags,
  kSchema,
  kRegex,
  kGrammar,
  kStyle,  // how a JSON value is written
  kOnlyFalse,
};

struct Field {
  std::string_view format, name;
  Value value;
  bool required = true;
};

// Formats of tokens are missing: they need the tokenizer, which routers have by name only.
constexpr Field kFields[] = {
    {"const_string", "value", Value::kFullText},
    {"json_schema", "json_schema", Value::kSchema},
    {"json_schema", "style", Value::kStyle, false},
    {"json_schema", "any_order", Value::kOnlyFalse, false},
    {"regex", "pattern", Value::kRegex},
    {"grammar", "grammar", Value::kGrammar},
    {"any_text", "excludes", Value::kTexts, false},
    {"sequence", "elements", Value::kFormats},
    {"or", "elements", Value::kFormats},
    {"optional", "content", Value::kFormat},
    {"plus", "content", Value::kFormat},
    {"star", "content", Value::kFormat},
    {"tag", "begin", Value::kText},
    {"tag", "content", Value::kFormat},
    {"tag", "end", Value::kEnds},
    {"triggered_tags", "triggers", Value::kTexts},
    {"triggered_tags", "tags", Value::kTags},
    {"triggered_tags", "excludes", Value::kTexts, false},
    {"triggered_tags", "at_least_one", Value::kFlag, false},
    {"triggered_tags", "stop_after_first", Value::kFlag, false},
    {"tags_with_separator", "tags", Value::kTags},
    {"tags_with_separator", "separator", Value::kText},
    {"tags_with_separator", "at_least_one", Value::kFlag, false},
    {"tags_with_separator", "stop_after_first", Value::kFlag, false},
};

// Reads the formats and writes them again. The first error is kept.
class Walk {
 public:
  absl::Status status() const { return status_; }

  OrderedJson Format(const OrderedJson& format, const Place& place, int depth,
                     std::string_view default_type = "") {
    if (!status_.ok()) return {};
    if (++formats_ > kMaxFormats)
      return Fail(place, Cat("is one format of more than ", kMaxFormats));
    if (depth > kMaxFormatDepth) {
      return Fail(place, Cat("is nested deeper than ", kMaxFormatDepth, " formats"));
    }
    if (!format.is_object()) return Fail(place, "must be an object");
    const OrderedJson* named = Find(format, "type");
    std::string type(default_type);
    if (named != nullptr && named->is_string()) type = named->get<std::string>();
    const auto is_of_type = [&type](const Field& field) { return field.format == type; };
    if (std::none_of(std::begin(kFields), std::end(kFields), is_of_type)) {
      return Fail(place, type.empty()
                             ? "must have a \"type\""
                             : Cat("is of type '", ShownName(type), "', which is not supported"));
    }
    for (const auto& member : format.get_ref<const OrderedJson::object_t&>()) {
      const std::string& name = member.first;
      const bool known = name == "type" ||
                         std::any_of(std::begin(kFields), std::end(kFields), [&](const Field& f) {
                           return is_of_type(f) && f.name == name;
                         });
      if (!known) return Fail(Place::At(place, name), Cat("is no field of '", type, "'"));
    }
    OrderedJson written{{"type", type}};
    for (const Field& field : kFields) {
      if (!is_of_type(field)) continue;
      const OrderedJson* value = Find(format, field.name);
      const Place there = Place::At(place, field.name);
      if (value == nullptr) {
        if (field.required) return Fail(there, "is missing");
        continue;
      }
      written[std::string(field.name)] = Read(*value, field.value, there, depth);
    }
    if (const OrderedJson* style = Find(written, "style"); style != nullptr && *style != "json") {
      OrderedJson& schema = written["json_schema"];
      auto in_xml = status_.ok() ? XmlSchema(std::move(schema), room_) : status_;
      if (!in_xml.ok()) return Fail(Place::At(place, "json_schema"), in_xml.status());
      schema = *std::move(in_xml);
    }
    return written;
  }

  OrderedJson Fail(const Place& place, std::string_view why) {
    if (status_.ok()) status_ = InvalidArgument(place.Pointer(), " ", why);
    return {};
  }

 private:
  OrderedJson Read(const OrderedJson& value, Value kind, const Place& place, int depth) {
    switch (kind) {
      case Value::kText:
      case Value::kFullText:
        if (!value.is_string()) return Fail(place, "must be a string");
        if (kind == Value::kFullText && value == "") return Fail(place, "must not be empty");
        return value;
      case Value::kEnds:
        if (value.is_string()) return value;
        return Texts(value, place, /*empty=*/true);
      case Value::kTexts:
        return Texts(value, place, /*empty=*/false);
      case Value::kFlag:
        return value.is_boolean() ? value : Fail(place, "must be true or false");
      case Value::kOnlyFalse:
        return value == false ? value : Fail(place, "is supported only as false");
      case Value::kStyle:
        if (value == "json" || value == "qwen_xml" || value == "glm_xml") return value;
        return Fail(place, R"(must be "json", "qwen_xml" or "glm_xml")");
      case Value::kFormat:
        return Format(value, place, depth + 1);
      case Value::kFormats:
        return Formats(value, place, depth, "");
      case Value::kTags:
        return Formats(value, place, depth, "tag");
      case Value::kSchema: {
        absl::StatusOr<OrderedJson> schema = NormalSchema(value);
        return schema.ok() ? *std::move(schema) : Fail(place, schema.status());
      }
      case Value::kRegex: {
        if (!value.is_string()) return Fail(place, "must be a string");
        const auto regex = ParseRegex(value.get_ref<const std::string&>(), RegexUse::kAnswer);
        return regex.ok() ? OrderedJson(WriteRegex(*regex)) : Fail(place, regex.status());
      }
      case Value::kGrammar: {
        if (!value.is_string()) return Fail(place, "must be a string");
        const auto grammar = GrammarConstraint(value.get_ref<const std::string&>());
        return grammar.ok() ? value : Fail(place, grammar.status());
      }
    }
    return {};
  }
  OrderedJson Fail(const Place& place, const absl::Status& status) {
    return Fail(place, Cat("is refused: ", std::string(status.message())));
  }
  OrderedJson Texts(const OrderedJson& value, const Place& place, bool empty) {
    const bool texts = value.is_array() && !value.empty() &&
                       std::all_of(value.begin(), value.end(), [empty](const OrderedJson& text) {
                         return text.is_string() && (empty || text != "");
                       });
    return texts ? value : Fail(place, "must be a list of strings that are not empty");
  }
  OrderedJson Formats(const OrderedJson& value, const Place& place, int depth,
                      std::string_view type) {
    if (!value.is_array() || value.empty()) return Fail(place, "must be a list of formats");
    OrderedJson written = OrderedJson::array();
    for (std::size_t i = 0; i < value.size() && status_.ok(); ++i) {
      const Place there = Place::At(place, i);
      OrderedJson format = Format(value[i], there, depth + 1, type);
      if (status_.ok() && !type.empty() && format["type"] != "tag") {
        return Fail(there, "must be of type \"tag\"");
      }
      written.push_back(std::move(format));
    }
    return written;
  }

  int formats_ = 0;
  std::size_t room_ = Constraint::kMaxBytes;  // of schemas in XML
  absl::Status status_;
};

// vLLM's older form as XGrammar's.
OrderedJson FromStructures(const OrderedJson& tag, const Place& place, Walk& walk) {
  OrderedJson tags = OrderedJson::array();
  const OrderedJson& structures = *Find(tag, "structures");
  if (!structures.is_array() || structures.empty()) {
    return walk.Fail(Place::At(place, "structures"), "must be a list of at least one structure");
  }
  for (std::size_t i = 0; i < structures.size(); ++i) {
    const OrderedJson *begin = Find(structures[i], "begin"), *end = Find(structures[i], "end"),
                      *schema = Find(structures[i], "schema");
    const Place list = Place::At(place, "structures");
    if (begin == nullptr || end == nullptr || schema == nullptr || structures[i].size() != 3) {
      return walk.Fail(Place::At(list, i), "must have \"begin\", \"schema\" and \"end\"");
    }
    tags.push_back({{"begin", *begin},
                    {"content", {{"type", "json_schema"}, {"json_schema", *schema}}},
                    {"end", *end}});
  }
  const OrderedJson* triggers = Find(tag, "triggers");
  return {{"type", "triggered_tags"},
          {"triggers", triggers == nullptr ? OrderedJson::array() : *triggers},
          {"tags", std::move(tags)}};
}

}  // namespace

absl::StatusOr<Constraint> StructuralTagConstraint(const OrderedJson& tag) {
  Walk walk;
  const Place place{nullptr, ""};
  const bool older = Find(tag, "structures") != nullptr;
  const OrderedJson* format = Find(tag, "format");
  if (!older && format == nullptr) {
    return InvalidArgument("the structural tag must be an object with \"format\"");
  }
  for (const auto& [name, value] : tag.get_ref<const OrderedJson::object_t&>()) {
    const bool known = older ? name == "structures" || name == "triggers" : name == "format";
    if (name == "type" ? value != "structural_tag" : !known) {
      return InvalidArgument("/", ShownName(name), " is not supported in a structural tag");
    }
  }
  const OrderedJson converted = older ? FromStructures(tag, place, walk) : *format;
  const Place there = older ? place : Place::At(place, "format");
  OrderedJson written = walk.Format(converted, there, 1);
  if (!walk.status().ok()) return walk.status();
  Constraint constraint{
      Constraint::Kind::kStructuralTag,
      OrderedJson{{"type", "structural_tag"}, {"format", std::move(written)}}.dump()};
  if (constraint.text.size() > Constraint::kMaxBytes) {
    return InvalidArgument("the structural tag has ", constraint.text.size(),
                           " bytes as it is compiled; at most ", Constraint::kMaxBytes,
                           " are allowed");
  }
  return constraint;
}

absl::StatusOr<Constraint> StructuralTagConstraintFromText(std::string_view tag) {
  const absl::StatusOr<OrderedJson> json = ParseOrderedJson(tag);
  if (!json.ok())
    return InvalidArgument("the structural tag ", std::string(json.status().message()));
  return StructuralTagConstraint(*json);
}

}  // namespace flotilla::router
