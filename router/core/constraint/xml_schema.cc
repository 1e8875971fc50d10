#include "router/core/constraint/xml_schema.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/types/text.h"
#include "router/core/constraint/regex.h"
#include "router/core/constraint/schema_check.h"
#include "router/core/constraint/schema_document.h"

namespace flotilla::router {
namespace {

// Schemas that the arguments may be one of, with those that they refer to.
constexpr int kMaxOptions = 100;

// Whether a tag can hold the name of an argument: readers look for brackets, and cut white space.
bool FitsTag(std::string_view name) {
  return !name.empty() && name.size() <= kMaxXmlNameBytes &&
         name.find_first_of("<>\r\n\t") == name.npos && name.front() != ' ' && name.back() != ' ';
}

// Whether a tag can hold a text as one of some values: readers look for the ends of values, and cut
// white space around such a text.
bool FitsValue(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  constexpr std::string_view kEnds[] = {"</parameter>", "</arg_value>",
                                        "</function>\n</tool_call>"};
  return std::none_of(std::begin(kEnds), std::end(kEnds),
                      [text](std::string_view end) { return text.find(end) != text.npos; }) &&
         (text.empty() ||
          (kSpaces.find(text.front()) == text.npos && kSpaces.find(text.back()) == text.npos));
}

// The expression without '<', which is in all tags.
RegexNode WithoutTags(const RegexNode& node) {
  std::vector<RegexNode> children;
  for (const RegexNode& child : node.children) children.push_back(WithoutTags(child));
  switch (node.kind) {
    case RegexNode::Kind::kSet:
      return SetNode(node.set.Intersection(CodepointSet::Of('<').Complement()));
    case RegexNode::Kind::kSequence:
      return SequenceNode(std::move(children));
    case RegexNode::Kind::kAlternatives:
      return AlternativesNode(std::move(children));
    case RegexNode::Kind::kRepeat:
      break;
  }
  return RepeatNode(std::move(children[0]), node.min, node.max);
}

class XmlWalk {
 public:
  // `root` and `room` outlive the walk.
  XmlWalk(const OrderedJson& root, std::size_t& room) : root_(root), room_(room) {}

  // The schema as its objects only; null if it has none, or is refused.
  OrderedJson Objects(const OrderedJson& schema) {
    if (++options_ > kMaxOptions) {
      return Refuse(Cat("has more than ", kMaxOptions, " options and references"));
    }
    if (const OrderedJson* reference = Find(schema, "$ref")) {
      const auto target = Resolve(root_, reference->get_ref<const std::string&>());
      return target.ok() ? Objects(**target) : Refuse(std::string(target.status().message()));
    }
    if (const OrderedJson* options = Find(schema, "anyOf")) {
      OrderedJson objects = OrderedJson::array();
      for (const OrderedJson& option : *options) {
        OrderedJson object = Objects(option);
        if (!object.is_null()) objects.push_back(std::move(object));
      }
      if (objects.empty()) return nullptr;
      return objects.size() == 1 ? std::move(objects[0]) : OrderedJson{{"anyOf", objects}};
    }
    const OrderedJson* type = Find(schema, "type");
    if (type == nullptr && Find(schema, "enum") == nullptr) {
      return {{"type", "object"}, {"additionalProperties", OrderedJson::object()}};
    }
    return type != nullptr && *type == "object" ? Object(schema) : nullptr;
  }

  absl::Status status() const { return status_; }

 private:
  // Refuses what makes the schema too large.
  bool Fits(const OrderedJson& copied) {
    if (!TakeRoom(copied, room_)) Refuse("is too large as it is compiled, with what it refers to");
    return status_.ok();
  }

  OrderedJson Object(const OrderedJson& schema) {
    OrderedJson object = OrderedJson::object();
    for (const auto& [name, value] : schema.get_ref<const OrderedJson::object_t&>()) {
      if (name == "$defs" || name == "patternProperties") continue;
      if (!Fits(value)) return nullptr;
      object[name] = value;
    }
    const bool is_open = schema.contains("patternProperties");
    const OrderedJson* properties = Find(schema, "properties");
    if (properties == nullptr && is_open) {
      return Refuse("must name its properties, or leave their names free");
    }
    if (properties != nullptr) {
      for (const auto& [name, property] : properties->get_ref<const OrderedJson::object_t&>()) {
        if (!FitsTag(name)) {
          return Refuse(Cat("has a property '", ShownName(name), "', which no tag can hold"));
        }
        argument_ = name;
        PutValue(property, object["properties"][name]);
      }
    }
    argument_ = {};
    if (const OrderedJson* others = Find(schema, "additionalProperties")) {
      PutValue(*others, object["additionalProperties"]);
    }
    if (is_open) object["additionalProperties"] = false;
    return object;
  }

  // Puts another schema for the values of an argument in the place of one, if it must be another.
  void PutValue(const OrderedJson& schema, OrderedJson& place) {
    const std::optional<OrderedJson>& value = Value(schema);
    if (value.has_value() && Fits(*value)) place = *value;
  }

  // The schema of an argument as tags can hold its values; nothing: as it is. Each is read once.
  const std::optional<OrderedJson>& Value(const OrderedJson& schema) {
    const auto [known, is_new] = values_.emplace(&schema, std::nullopt);
    if (is_new && status_.ok()) known->second = NewValue(schema);
    return known->second;
  }

  std::optional<OrderedJson> NewValue(const OrderedJson& schema) {
    if (const OrderedJson* reference = Find(schema, "$ref")) {
      const auto target = Resolve(root_, reference->get_ref<const std::string&>());
      return target.ok() && *target != &root_ ? Value(**target) : std::nullopt;
    }
    if (const OrderedJson* options = Find(schema, "anyOf")) {
      std::optional<OrderedJson> changed;
      for (std::size_t i = 0; i < options->size(); ++i) {
        const std::optional<OrderedJson>& option = Value((*options)[i]);
        if (!option.has_value() || !Fits(*option)) continue;
        if (!changed.has_value()) changed = schema;
        (*changed)["anyOf"][i] = *option;
      }
      return changed;
    }
    if (const OrderedJson* values = Find(schema, "enum")) {
      for (const OrderedJson& value : *values) {
        if (value.is_string() && !FitsValue(value.get_ref<const std::string&>())) {
          RefuseArgument(Cat("has the value '", ShownName(value.get_ref<const std::string&>()),
                             "', which no tag can hold"));
        }
      }
      return std::nullopt;
    }
    const OrderedJson *type = Find(schema, "type"), *pattern = Find(schema, "pattern");
    if (pattern == nullptr || type == nullptr || *type != "string") return std::nullopt;
    const auto node = ParseRegex(pattern->get_ref<const std::string&>(), RegexUse::kWritten);
    if (!node.ok()) return RefuseArgument(Cat("has a pattern that ", node.status().message()));
    const RegexNode without = WithoutTags(*node);
    if (without.never()) return RefuseArgument("has only values with '<', which no tag can hold");
    if (without.is_empty_text()) return OrderedJson{{"enum", OrderedJson::array({""})}};
    OrderedJson changed = schema;
    changed["pattern"] = Cat("^", WriteRegex(without), "$");
    return changed["pattern"] == *pattern ? std::nullopt : std::optional(std::move(changed));
  }

  OrderedJson Refuse(std::string_view why) {
    if (status_.ok()) status_ = InvalidArgument("the schema of arguments in XML ", why);
    return nullptr;
  }
  std::nullopt_t RefuseArgument(std::string_view why) {
    Refuse(argument_.empty() ? Cat("for arguments that it does not name ", why)
                             : Cat("for '", ShownName(argument_), "' ", why));
    return std::nullopt;
  }

  const OrderedJson& root_;
  std::size_t& room_;
  int options_ = 0;
  std::string_view argument_;  // the name of the one that is read; empty: any other
  std::map<const OrderedJson*, std::optional<OrderedJson>> values_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<OrderedJson> XmlSchema(OrderedJson schema, std::size_t& room) {
  XmlWalk walk(schema, room);
  OrderedJson written = walk.Objects(schema);
  if (!walk.status().ok()) return walk.status();
  if (written.is_null()) return InvalidArgument("the schema of arguments in XML takes no object");
  if (OrderedJson* definitions = schema.contains("$defs") ? &schema["$defs"] : nullptr) {
    written["$defs"] = std::move(*definitions);
  }
  // References to the whole schema now mean its objects only.
  if (!FindUnending(written).empty()) {
    return InvalidArgument(
        "the schema of arguments in XML comes back to itself in all its objects, ", "so none ends");
  }
  return written;
}

}  // namespace flotilla::router
