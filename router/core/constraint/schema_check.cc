#include "router/core/constraint/schema_check.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace flotilla::router {
namespace {

// What has to be finite so that a value of a schema is: all parts, one of them, or a definition.
// Nothing has to be where there are no parts.
struct Need {
  enum class Kind : std::uint8_t { kAll, kAny, kDefinition };
  Kind kind = Kind::kAll;
  std::vector<Need> parts;
  std::size_t definition = 0;

  bool none() const { return kind == Kind::kAll && parts.empty(); }
};

// The definitions of one schema, with the schema itself in front.
class Definitions {
 public:
  explicit Definitions(const OrderedJson& written) : schemas_{&written} {
    if (const OrderedJson* definitions = Find(written, "$defs")) {
      for (const OrderedJson& each : *definitions) schemas_.push_back(&each);
    }
    for (const OrderedJson* schema : schemas_) needs_.push_back(NeedOf(*schema));
    finite_.resize(schemas_.size());
    seen_.resize(schemas_.size());
  }

  std::size_t size() const { return schemas_.size(); }
  bool finite(std::size_t index) const { return finite_[index]; }

  // Finds which are finite, from those that need no other one on.
  void FindFinite() {
    for (bool more = true; more;) {
      more = false;
      for (std::size_t i = 0; i < schemas_.size(); ++i) {
        if (finite_[i] || !IsFinite(needs_[i])) continue;
        finite_[i] = more = true;
      }
    }
  }

  // Whether a schema comes back to itself through references and options alone.
  bool IsItsOwnOption(std::size_t index) {
    std::fill(seen_.begin(), seen_.end(), false);
    return Leads(*schemas_[index], index);
  }

 private:
  static std::size_t Target(const OrderedJson& reference) {
    const std::string& uri = reference.get_ref<const std::string&>();
    constexpr std::string_view kPrefix = "#/$defs/";
    if (uri == "#") return 0;
    std::size_t number = 0;
    std::from_chars(uri.data() + kPrefix.size(), uri.data() + uri.size(), number);
    return number + 1;
  }

  // FindFinite looks at this again and again, so it has nothing that is finite anyway.
  static Need NeedOf(const OrderedJson& schema) {
    Need need;
    const auto add = [&need](const OrderedJson& part) {
      if (Need of_part = NeedOf(part); !of_part.none()) need.parts.push_back(std::move(of_part));
    };
    if (const OrderedJson* reference = Find(schema, "$ref")) {
      return {.kind = Need::Kind::kDefinition, .definition = Target(*reference)};
    }
    if (const OrderedJson* options = Find(schema, "anyOf")) {
      std::for_each(options->begin(), options->end(), add);
      if (need.parts.size() < options->size()) return {};
      need.kind = Need::Kind::kAny;
      return need;
    }
    if (const OrderedJson* required = Find(schema, "required")) {
      std::set<std::string_view> names;
      for (const OrderedJson& name : *required) names.insert(name.get_ref<const std::string&>());
      const OrderedJson& properties = *Find(schema, "properties");
      for (const auto& [name, property] : properties.get_ref<const OrderedJson::object_t&>()) {
        if (names.contains(name)) add(property);
      }
      return need;
    }
    const OrderedJson* least = Find(schema, "minItems");
    if (least == nullptr) least = Find(schema, "minProperties");
    auto left = least == nullptr ? 0 : least->get<std::size_t>();
    if (const OrderedJson* prefix = Find(schema, "prefixItems")) {
      for (std::size_t i = 0; i < prefix->size() && left > 0; ++i, --left) add((*prefix)[i]);
    }
    for (const std::string_view others : {"items", "additionalProperties"}) {
      const OrderedJson* other = Find(schema, others);
      if (left > 0 && other != nullptr && other->is_object()) add(*other);
    }
    return need;
  }

  bool IsFinite(const Need& need) const {
    const auto is_finite = [this](const Need& part) { return IsFinite(part); };
    if (need.kind == Need::Kind::kDefinition) return finite_[need.definition];
    return need.kind == Need::Kind::kAll
               ? std::all_of(need.parts.begin(), need.parts.end(), is_finite)
               : std::any_of(need.parts.begin(), need.parts.end(), is_finite);
  }

  bool Leads(const OrderedJson& schema, std::size_t index) {
    if (const OrderedJson* reference = Find(schema, "$ref")) {
      const std::size_t target = Target(*reference);
      if (target == index) return true;
      if (seen_[target]) return false;
      seen_[target] = true;
      return Leads(*schemas_[target], index);
    }
    const OrderedJson* options = Find(schema, "anyOf");
    return options != nullptr &&
           std::any_of(options->begin(), options->end(),
                       [&](const OrderedJson& option) { return Leads(option, index); });
  }

  std::vector<const OrderedJson*> schemas_;
  std::vector<Need> needs_;
  std::vector<bool> finite_, seen_;
};

// Whether XGrammar's comparison overlooks a member of this name, or takes it for more than one.
bool IsOverlooked(std::string_view name) {
  constexpr std::string_view kOverlooked[] = {"title",     "default",    "description",
                                              "examples",  "deprecated", "readOnly",
                                              "writeOnly", "$comment",   "$schema"};
  return std::find(std::begin(kOverlooked), std::end(kOverlooked), name) != std::end(kOverlooked) ||
         name.find('"') != std::string_view::npos;
}

bool HasOverlooked(const OrderedJson& value) {
  if (value.is_array()) return std::any_of(value.begin(), value.end(), HasOverlooked);
  if (!value.is_object()) return false;
  return std::any_of(value.items().begin(), value.items().end(), [](const auto& member) {
    return IsOverlooked(member.key()) || HasOverlooked(member.value());
  });
}

class Numbering {
 public:
  // Schemas lie in schemas, in lists of them, and in objects of properties.
  void Walk(OrderedJson& schema, bool is_schema) {
    if (schema.is_array()) {
      for (OrderedJson& each : schema) Walk(each, true);
      return;
    }
    if (!schema.is_object()) return;
    bool overlooked = false;
    for (auto& [name, value] : schema.get_ref<OrderedJson::object_t&>()) {
      if (is_schema && name == "enum") {
        overlooked = overlooked || HasOverlooked(value);
        continue;
      }
      if (is_schema && (name == "required" || name == "pattern")) continue;
      const bool named =
          is_schema && (name == "properties" || name == "patternProperties" || name == "$defs");
      if (named) {
        for (const auto& [key, property] : value.get_ref<const OrderedJson::object_t&>()) {
          overlooked = overlooked || IsOverlooked(key);
        }
      }
      Walk(value, !named);
    }
    if (!is_schema || !overlooked) return;
    const auto [number, is_new] = numbers_.emplace(schema.dump(), numbers_.size());
    schema.emplace("x-number", number->second);
  }

 private:
  std::map<std::string, std::size_t> numbers_;
};

}  // namespace

std::vector<UnendingSchema> FindUnending(const OrderedJson& written) {
  Definitions definitions(written);
  definitions.FindFinite();
  std::vector<UnendingSchema> unending;
  for (std::size_t i = 0; i < definitions.size(); ++i) {
    const bool own_option = definitions.IsItsOwnOption(i);
    if (!own_option && definitions.finite(i)) continue;
    unending.push_back({i == 0 ? std::nullopt : std::optional(i - 1), own_option});
  }
  return unending;
}

void TellApart(OrderedJson& written) { Numbering().Walk(written, true); }

bool TakeRoom(const OrderedJson& value, std::size_t& room) {
  std::size_t size = 1;
  if (value.is_structured()) size = 1 + std::max<std::size_t>(value.size(), 1);
  if (value.is_string()) size = 2 + value.get_ref<const std::string&>().size();
  if (size > room) return false;
  room -= size;
  if (!value.is_object()) {
    return !value.is_array() ||
           std::all_of(value.begin(), value.end(),
                       [&room](const OrderedJson& each) { return TakeRoom(each, room); });
  }
  for (const auto& [name, member] : value.get_ref<const OrderedJson::object_t&>()) {
    if (3 + name.size() > room) return false;
    room -= 3 + name.size();
    if (!TakeRoom(member, room)) return false;
  }
  return true;
}

bool HasOnlyExactNumbers(const OrderedJson& value) {
  if (value.is_structured()) return std::all_of(value.begin(), value.end(), HasOnlyExactNumbers);
  if (!value.is_number_unsigned()) return true;
  const auto number = value.get<std::uint64_t>();
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  return number <= kLargest;
}

}  // namespace flotilla::router
