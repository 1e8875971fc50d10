#include "router/core/constraint/xml_schema.h"

#include <string>
#include <utility>

#include "common/types/text.h"
#include "router/core/constraint/schema_document.h"

namespace flotilla::router {
namespace {

// Schemas that the arguments may be one of, with those that they refer to.
constexpr int kMaxOptions = 100;

// Whether a tag can hold the name of an argument: readers look for brackets, and cut white space.
bool FitsTag(std::string_view name) {
  return !name.empty() && name.find_first_of("<>\r\n\t") == name.npos && name.front() != ' ' &&
         name.back() != ' ';
}

class XmlWalk {
 public:
  // `root` outlives the walk.
  explicit XmlWalk(const OrderedJson& root) : root_(root) {}

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
  OrderedJson Object(OrderedJson object) {
    object.erase("$defs");
    const bool is_open = object.contains("patternProperties");
    const OrderedJson* properties = Find(object, "properties");
    if (properties == nullptr) {
      return is_open ? Refuse("must name its properties, or leave their names free") : object;
    }
    for (const auto& [name, property] : properties->get_ref<const OrderedJson::object_t&>()) {
      if (!FitsTag(name)) {
        return Refuse(Cat("has a property '", ShownName(name), "', which no tag can hold"));
      }
    }
    if (is_open) {
      object.erase("patternProperties");
      object["additionalProperties"] = false;
    }
    return object;
  }

  OrderedJson Refuse(std::string_view why) {
    if (status_.ok()) status_ = InvalidArgument("the schema of arguments in XML ", why);
    return nullptr;
  }

  const OrderedJson& root_;
  int options_ = 0;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<OrderedJson> XmlSchema(OrderedJson schema) {
  XmlWalk walk(schema);
  OrderedJson written = walk.Objects(schema);
  if (!walk.status().ok()) return walk.status();
  if (written.is_null()) return InvalidArgument("the schema of arguments in XML takes no object");
  if (OrderedJson* definitions = schema.contains("$defs") ? &schema["$defs"] : nullptr) {
    written["$defs"] = std::move(*definitions);
  }
  return written;
}

}  // namespace flotilla::router
