#include "router/core/constraint/schema_overlap.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "router/core/constraint/keywords.h"
#include "router/core/constraint/schema_document.h"

namespace flotilla::router {
namespace {

// References and properties that are followed. What lies deeper may take anything.
constexpr int kMaxSteps = 8;

// To pass a name by takes less than to read a schema or to compare two values.
constexpr std::size_t kNamesPerWork = 8;

// The values of "enum" or "const".
std::optional<std::vector<const OrderedJson*>> ValuesOf(const OrderedJson& schema) {
  if (const OrderedJson* value = Find(schema, "const")) return {{value}};
  const OrderedJson* values = Find(schema, "enum");
  if (values == nullptr || !values->is_array()) return std::nullopt;
  std::vector<const OrderedJson*> all;
  for (const OrderedJson& value : *values) all.push_back(&value);
  return all;
}

// The types that "type" lists.
unsigned TypesNamed(const OrderedJson& type) {
  unsigned types = 0;
  const auto add = [&types](const OrderedJson& name) {
    if (name.is_string()) types |= TypeNamed(name.get_ref<const std::string&>());
  };
  if (!type.is_array()) add(type);
  if (type.is_array()) std::ranges::for_each(type, add);
  return types & kNumberType ? types | kIntegerType : types;
}

}  // namespace

unsigned TypeOfValue(const OrderedJson& value) {
  if (value.is_null()) return kNullType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_string()) return kStringType;
  if (value.is_array()) return kArrayType;
  if (value.is_object()) return kObjectType;
  const bool whole =
      value.is_number_integer() || std::floor(value.get<double>()) == value.get<double>();
  return whole ? kIntegerType : kNumberType;
}

const OrderedJson& SchemaOverlap::Target(const OrderedJson& schema) {
  const OrderedJson* target = &schema;
  for (int step = 0; step < kMaxSteps; ++step) target = &Next(*target);
  return *target;
}

const OrderedJson& SchemaOverlap::Next(const OrderedJson& schema) {
  const auto [known, is_new] = next_.emplace(&schema, &schema);
  if (!is_new) return *known->second;
  std::size_t names = schema.size();
  const OrderedJson* reference = Find(schema, "$ref");
  if (reference != nullptr && reference->is_string()) {
    const auto target = Resolve(root_, reference->get_ref<const std::string&>(), &names);
    if (target.ok()) known->second = *target;
  }
  ChargeNames(names);
  return *known->second;
}

bool SchemaOverlap::ChargeNames(std::size_t names) { return Charge(names / kNamesPerWork); }

unsigned SchemaOverlap::Types(const OrderedJson& schema, int steps) {
  if (schema.is_boolean()) return schema.get<bool>() ? unsigned{kAllTypes} : 0;
  if (steps == kMaxSteps || !Charge(1)) return kAllTypes;
  const auto known = types_.find({&schema, steps});
  if (known != types_.end()) return known->second;
  return types_[{&schema, steps}] = TypesOfTarget(Target(schema), steps);
}

unsigned SchemaOverlap::TypesOfTarget(const OrderedJson& target, int steps) {
  if (!ChargeNames(target.size())) return kAllTypes;
  if (const auto values = ValuesOf(target)) {
    if (!Charge(values->size())) return kAllTypes;
    unsigned types = 0;
    for (const OrderedJson* value : *values) types |= TypeOfValue(*value);
    return types;
  }
  unsigned types = kAllTypes;
  if (const OrderedJson* type = Find(target, "type")) types = TypesNamed(*type);
  for (const std::string_view keyword : {"anyOf", "oneOf", "allOf"}) {
    const OrderedJson* options = Find(target, keyword);
    if (options == nullptr || !options->is_array() || (keyword == "allOf" && options->size() > 1)) {
      continue;
    }
    unsigned any = 0;
    for (const OrderedJson& option : *options) any |= Types(option, steps + 1);
    types &= any;
  }
  return types;
}

bool SchemaOverlap::Apart(const OrderedJson& a, const OrderedJson& b, int steps) {
  const unsigned common = Types(a, steps) & Types(b, steps);
  if (common == 0) return true;
  if (steps == kMaxSteps) return false;
  const OrderedJson &first = Target(a), &second = Target(b);
  if (!ChargeNames(first.size() + second.size())) return false;
  const auto values = ValuesOf(first), others = ValuesOf(second);
  if (values && others) {
    return Charge(values->size() * others->size()) &&
           std::none_of(values->begin(), values->end(), [&](const OrderedJson* value) {
             return std::any_of(others->begin(), others->end(), [&](const OrderedJson* other) {
               return MayBeSame(*value, *other);
             });
           });
  }
  // Objects that differ in what they both require.
  if (common != kObjectType) return false;
  const OrderedJson *properties = Find(first, "properties"), *rest = Find(second, "properties");
  if (properties == nullptr || rest == nullptr || !properties->is_object()) return false;
  for (const auto& [name, property] : properties->get_ref<const OrderedJson::object_t&>()) {
    if (!Charge(rest->size())) return false;
    const OrderedJson* other = Find(*rest, name);
    if (other != nullptr && Requires(first, name) && Requires(second, name) &&
        Apart(property, *other, steps + 1)) {
      return true;
    }
  }
  return false;
}

bool SchemaOverlap::Requires(const OrderedJson& schema, std::string_view name) {
  const OrderedJson* required = Find(schema, "required");
  return required != nullptr && required->is_array() && ChargeNames(required->size()) &&
         std::any_of(required->begin(), required->end(), [name](const OrderedJson& key) {
           return key.is_string() && key.get_ref<const std::string&>() == name;
         });
}

bool SchemaOverlap::MayBeSame(const OrderedJson& a, const OrderedJson& b) {
  if (a.is_number() && b.is_number()) return a.get<double>() == b.get<double>();
  if (a.type() != b.type() || a.size() != b.size()) return false;
  if (a.is_string()) {
    const std::string& text = a.get_ref<const std::string&>();
    return !ChargeNames(text.size()) || text == b.get_ref<const std::string&>();
  }
  if (!a.is_structured()) return a == b;
  if (!Charge(a.is_object() ? a.size() * b.size() : a.size())) return true;
  if (a.is_array()) {
    return std::equal(
        a.begin(), a.end(), b.begin(),
        [this](const OrderedJson& one, const OrderedJson& other) { return MayBeSame(one, other); });
  }
  const auto& members = a.get_ref<const OrderedJson::object_t&>();
  return std::all_of(members.begin(), members.end(), [this, &b](const auto& member) {
    const OrderedJson* other = Find(b, member.first);
    return other != nullptr && MayBeSame(member.second, *other);
  });
}

}  // namespace flotilla::router
