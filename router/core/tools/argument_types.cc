#include "router/core/tools/argument_types.h"

#include <algorithm>
#include <utility>

#include "router/core/constraint/ordered_json.h"
#include "router/core/constraint/schema_document.h"
#include "router/core/constraint/schema_overlap.h"

namespace flotilla::router {
namespace {

// Schemas and references of one tool that are read; what is beyond may be anything. Options that
// refer to options would be read many times else.
constexpr int kMaxSteps = 1000;
constexpr int kMaxDepth = 16;
// Members and values that are looked at for that, again for each reference. To pass a definition by
// takes less.
constexpr std::size_t kMaxWork = 32'768, kNamesPerWork = 8;

// In characters. A greater "maxLength" says nothing.
constexpr double kLongestText = 1e9;

class SchemaReader {
 public:
  explicit SchemaReader(const OrderedJson& root) : root_(root) {}

  // Adds what an object of this schema may have.
  void ReadObject(const OrderedJson& schema, int depth, ArgumentTypes::Tool& tool) {
    const OrderedJson* target = Target(schema, depth);
    if (target == nullptr) return;
    if (const OrderedJson* properties = Find(*target, "properties");
        properties != nullptr && properties->is_object()) {
      for (const auto& [name, property] : properties->get_ref<const OrderedJson::object_t&>()) {
        const ArgumentType type = TypeOf(property, depth + 1);
        const auto [known, is_new] = tool.named.emplace(name, type);
        if (!is_new) known->second = Either(known->second, type);
      }
    }
    if (const OrderedJson* others = Find(*target, "additionalProperties")) {
      tool.others = TypeOf(*others, depth + 1);
    }
    if (const OrderedJson* patterns = Find(*target, "patternProperties");
        patterns != nullptr && patterns->is_object() && patterns->size() == 1) {
      tool.others = TypeOf(patterns->front(), depth + 1);
    }
    for (const std::string_view keyword : {"anyOf", "oneOf", "allOf"}) {
      const OrderedJson* options = Find(*target, keyword);
      if (options == nullptr || !options->is_array()) continue;
      for (const OrderedJson& option : *options) ReadObject(option, depth + 1, tool);
    }
  }

 private:
  static ArgumentType Either(ArgumentType a, ArgumentType b) {
    return {a.types | b.types, a.trims || b.trims, std::min(a.max_length, b.max_length)};
  }

  // The types that the keywords of a schema without "type" are about; all if there are none.
  static unsigned TypesOfKeywords(const OrderedJson& schema) {
    unsigned types = 0;
    for (const auto& [name, value] : schema.get_ref<const OrderedJson::object_t&>()) {
      if (const Keyword* word = FindKeyword(name)) types |= word->types;
    }
    if (types & kNumberType) types |= kIntegerType;
    return types == 0 ? unsigned{kAllTypes} : types;
  }

  // What a schema is behind its references; null if that is not to be read.
  const OrderedJson* Target(const OrderedJson& schema, int depth) {
    if (depth > kMaxDepth) return nullptr;
    const OrderedJson* target = &schema;
    while (++steps_ <= kMaxSteps && Charge(target->size())) {
      const OrderedJson* reference = Find(*target, "$ref");
      if (reference == nullptr) return target->is_object() ? target : nullptr;
      if (!reference->is_string()) return nullptr;
      std::size_t names = 0;
      const auto next = Resolve(root_, reference->get_ref<const std::string&>(), &names);
      if (!next.ok() || !Charge(names / kNamesPerWork)) return nullptr;
      target = *next;
    }
    return nullptr;
  }

  ArgumentType TypeOf(const OrderedJson& schema, int depth) {
    const OrderedJson* target = Target(schema, depth);
    if (target == nullptr) return {};
    ArgumentType type;
    if (const OrderedJson* value = Find(*target, "const")) {
      type.types = TypeOfValue(*value);
      type.trims = true;
    } else if (const OrderedJson* values = Find(*target, "enum");
               values != nullptr && values->is_array()) {
      if (!Charge(values->size())) return {};
      type.types = 0;
      type.trims = true;
      for (const OrderedJson& each : *values) type.types |= TypeOfValue(each);
    }
    if (const OrderedJson* named = Find(*target, "type")) {
      unsigned types = 0;
      for (const OrderedJson& name : named->is_array() ? *named : OrderedJson::array({*named})) {
        if (name.is_string()) types |= TypeNamed(name.get_ref<const std::string&>());
      }
      if (types & kNumberType) types |= kIntegerType;
      type.types &= types;
    } else if (type.types == kAllTypes) {
      type.types = TypesOfKeywords(*target);
    }
    if (const OrderedJson* most = Find(*target, "maxLength");
        most != nullptr && most->is_number() && TypeOfValue(*most) == kIntegerType &&
        most->get<double>() >= 0 && most->get<double>() <= kLongestText) {
      type.max_length = static_cast<std::size_t>(most->get<double>());
    }
    type.trims |= target->contains("pattern") || target->contains("format");
    for (const std::string_view keyword : {"anyOf", "oneOf", "allOf"}) {
      const OrderedJson* options = Find(*target, keyword);
      if (options == nullptr || !options->is_array()) continue;
      ArgumentType any{.types = 0};
      for (const OrderedJson& option : *options) {
        const ArgumentType each = TypeOf(option, depth + 1);
        if (keyword == "allOf") type.types &= each.types;
        any = Either(any, each);
      }
      any.types = keyword == "allOf" ? type.types : type.types & any.types;
      type = {any.types, type.trims || any.trims, std::min(type.max_length, any.max_length)};
    }
    if (type.types == 0) type.types = kAllTypes;  // nothing is valid, or a type has another name
    return type;
  }

  bool Charge(std::size_t work) { return (work_ += work) <= kMaxWork; }

  const OrderedJson& root_;
  int steps_ = 0;
  std::size_t work_ = 0;
};

}  // namespace

void ArgumentTypes::Add(std::string_view tool, std::string_view parameters) {
  const absl::StatusOr<OrderedJson> schema = ParseOrderedJson(parameters);
  if (!schema.ok()) return;
  SchemaReader(*schema).ReadObject(*schema, 0, tools_[std::string(tool)]);
}

ArgumentType ArgumentTypes::Of(std::string_view tool, std::string_view argument) const {
  const auto known = tools_.find(tool);
  if (known == tools_.end()) return {};
  const auto named = known->second.named.find(argument);
  return named == known->second.named.end() ? known->second.others : named->second;
}

}  // namespace flotilla::router
