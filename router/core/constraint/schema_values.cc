// Strings, numbers and arrays.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/types/text.h"
#include "router/core/constraint/formats.h"
#include "router/core/constraint/json_schema.h"
#include "router/core/constraint/keywords.h"
#include "router/core/constraint/schema_check.h"
#include "router/core/constraint/schema_overlap.h"
#include "router/core/constraint/schema_walk.h"

namespace flotilla::router {
namespace {

// What longer bounds become: no answer has that many.
constexpr std::int64_t kCountCap = 65'536;

// XGrammar holds numbers to bounds with six decimals, and reads bounds as doubles, of which it
// prints six decimals. Up to this size these are exact.
constexpr double kMaxNumber = 1e9;
constexpr double kGrid = 1e6;

// XGrammar counts in all remainders, and lists what is in a range.
constexpr std::int64_t kMaxMultiple = 256, kMaxRange = 10'000;

// Holds an expression to lengths; false if that is not possible in one expression.
bool HoldTo(std::int64_t least, std::optional<std::int64_t> most, RegexNode& node) {
  const Lengths lengths = LengthsOf(node);
  const bool fits = lengths.min >= static_cast<std::size_t>(least) &&
                    (!most || (lengths.max && *lengths.max <= static_cast<std::size_t>(*most)));
  if (fits) return true;
  RegexNode one = node;
  std::int64_t min = 1, max = 1;
  if (node.kind == RegexNode::Kind::kRepeat) {
    one = node.children[0];
    min = node.min;
    max = node.max == RegexNode::kUnbounded ? kCountCap : node.max;
  }
  if (one.kind != RegexNode::Kind::kSet) return false;
  min = std::max(min, least);
  max = std::min(max, most.value_or(kCountCap));
  const bool unbounded = max == kCountCap && !most;
  node = min > max ? AlternativesNode({})
                   : RepeatNode(std::move(one), static_cast<int>(min),
                                unbounded ? RegexNode::kUnbounded : static_cast<int>(max));
  return true;
}

}  // namespace

// The expression of "pattern" or "format"; no value if there is neither, or it is refused.
std::optional<RegexNode> SchemaWalk::Pattern(const Schema& schema) {
  const OrderedJson *pattern = Find(schema.json, "pattern"), *format = Find(schema.json, "format");
  for (const OrderedJson* text : {pattern, format}) {
    if (text != nullptr && !text->is_string()) {
      Refuse(schema.place, text == pattern ? "pattern" : "format", "must be a string");
      return std::nullopt;
    }
  }
  if (pattern != nullptr && format != nullptr) {
    Refuse(schema.place, "pattern", "beside \"format\" is not supported");
    return std::nullopt;
  }
  if (pattern == nullptr && format == nullptr) return std::nullopt;
  std::string_view text;
  if (format != nullptr) {
    const auto& name = format->get_ref<const std::string&>();
    text = PatternOfFormat(name);
    if (text.empty()) {
      Refuse(schema.place, "format", Cat("'", ShownName(name), "' is not supported"));
      return std::nullopt;
    }
  } else {
    text = pattern->get_ref<const std::string&>();
  }
  absl::StatusOr<RegexNode> node = ParseRegex(text, RegexUse::kJsonString);
  if (!node.ok()) {
    Refuse(schema.place, "pattern", std::string(node.status().message()));
    return std::nullopt;
  }
  return *std::move(node);
}

OrderedJson SchemaWalk::String(const Schema& schema) {
  std::optional<RegexNode> node = Pattern(schema);
  const std::int64_t least = Count(schema, "minLength", kMaxSchemaCount + 1).value_or(0);
  const std::optional<std::int64_t> most = Count(schema, "maxLength", kCountCap);
  if (!ok()) return false;
  if (least > kMaxSchemaCount) {
    return Refuse(schema.place, "minLength", Cat("is supported up to ", kMaxSchemaCount));
  }
  const bool bounded = least > 0 || most;
  if (!node && !bounded) return {{"type", "string"}};
  if (!node) node = RepeatNode(SetNode(UnescapedInJson()), 0, RegexNode::kUnbounded);
  if (bounded && !HoldTo(least, most, *node)) {
    return Refuse(schema.place, most ? "maxLength" : "minLength",
                  Cat("beside \"", schema.json.contains("pattern") ? "pattern" : "format",
                      "\" is supported only if that alone keeps to it, or repeats one character"));
  }
  if (node->never()) return false;
  if (node->is_empty_text()) return {{"enum", OrderedJson::array({""})}};
  return {{"type", "string"}, {"pattern", Cat("^", WriteRegex(*node), "$")}};
}

OrderedJson SchemaWalk::Integer(const Schema& schema) {
  std::int64_t low = std::numeric_limits<std::int64_t>::min();
  std::int64_t high = std::numeric_limits<std::int64_t>::max();
  bool bounded_low = false, bounded_high = false;
  for (const std::string_view keyword :
       {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    const OrderedJson* value = Find(schema.json, keyword);
    if (value == nullptr) continue;
    if (!value->is_number()) return Refuse(schema.place, keyword, "must be a number");
    const double number = value->get<double>();
    // Larger ones lie at the ends of 64 bits, or have lost digits.
    if (!value->is_number_integer() && std::abs(number) > 9e15) {
      return Refuse(schema.place, keyword, "of integers is supported up to 9e15, and as digits");
    }
    if (value->is_number_unsigned() && !HasOnlyExactNumbers(*value)) {
      return Refuse(schema.place, keyword, "has a number that 64 bits do not hold");
    }
    const bool is_low = keyword == "minimum" || keyword == "exclusiveMinimum";
    const bool whole = TypeOfValue(*value) == kIntegerType;
    std::int64_t bound =
        value->is_number_integer()
            ? value->get<std::int64_t>()
            : static_cast<std::int64_t>(is_low ? std::ceil(number) : std::floor(number));
    if (whole && keyword.starts_with("exclusive")) {
      if (bound == (is_low ? std::numeric_limits<std::int64_t>::max()
                           : std::numeric_limits<std::int64_t>::min())) {
        return false;
      }
      bound += is_low ? 1 : -1;
    }
    (is_low ? bounded_low : bounded_high) = true;
    if (is_low) {
      low = std::max(low, bound);
    } else {
      high = std::min(high, bound);
    }
  }
  if (low > high) return false;
  OrderedJson written{{"type", "integer"}};
  if (bounded_low) written["minimum"] = low;
  if (bounded_high) written["maximum"] = high;
  MultipleOf(schema, bounded_low, bounded_high, low, high, written);
  return written;
}

void SchemaWalk::MultipleOf(const Schema& schema, bool bounded_low, bool bounded_high,
                            std::int64_t low, std::int64_t high, OrderedJson& written) {
  const OrderedJson* value = Find(schema.json, "multipleOf");
  if (value == nullptr) return;
  const bool whole = value->is_number() && TypeOfValue(*value) == kIntegerType;
  const double number = whole ? value->get<double>() : 0;
  if (number < 1 || number > kMaxMultiple) {
    Refuse(schema.place, "multipleOf",
           Cat("is supported as a whole number from 1 to ", kMaxMultiple));
    return;
  }
  const auto multiple = static_cast<std::int64_t>(number);
  if (multiple == 1) return;
  if (bounded_low != bounded_high ||
      (bounded_low && (low < -kMaxRange || high > kMaxRange || high - low >= kMaxRange))) {
    Refuse(schema.place, "multipleOf",
           Cat("is supported without bounds, or between two that are less than ", kMaxRange,
               " apart and from 0"));
    return;
  }
  if (bounded_low) {
    const std::int64_t last = high - ((high % multiple) + multiple) % multiple;
    if (last < low) {
      written = false;
      return;
    }
  }
  written["multipleOf"] = multiple;
}

OrderedJson SchemaWalk::Number(const Schema& schema) {
  // All of its values are whole.
  if (schema.json.contains("multipleOf")) return Integer(schema);
  OrderedJson written{{"type", "number"}};
  // The first and last multiples of 1 / kGrid inside.
  double first = -std::numeric_limits<double>::infinity(), last = -first;
  for (const bool is_low : {true, false}) {
    std::optional<double> bound;
    bool exclusive = false;
    for (const std::string_view keyword :
         {is_low ? "minimum" : "maximum", is_low ? "exclusiveMinimum" : "exclusiveMaximum"}) {
      const OrderedJson* value = Find(schema.json, keyword);
      if (value == nullptr) continue;
      if (!value->is_number()) return Refuse(schema.place, keyword, "must be a number");
      const double number = value->get<double>();
      if (std::abs(number) > kMaxNumber) {
        return Refuse(schema.place, keyword, "of numbers is supported up to 1e9");
      }
      const bool is_exclusive = keyword.starts_with("exclusive");
      const bool tighter = !bound || (is_low ? number > *bound : number < *bound) ||
                           (number == *bound && is_exclusive);
      if (tighter) {
        bound = number;
        exclusive = is_exclusive;
      }
    }
    if (!bound) continue;
    const std::string_view side = is_low ? "minimum" : "maximum";
    written[exclusive ? (is_low ? "exclusiveMinimum" : "exclusiveMaximum") : std::string(side)] =
        *bound;
    const double nearest = std::nearbyint(*bound * kGrid);
    const bool on_grid = nearest / kGrid == *bound;
    double& end = is_low ? first : last;
    end = on_grid ? nearest : is_low ? std::ceil(*bound * kGrid) : std::floor(*bound * kGrid);
    if (on_grid && exclusive) end += is_low ? 1 : -1;
  }
  if (first > last) {
    return Refuse(schema.place, "minimum", "leaves no number with six decimals up to \"maximum\"");
  }
  return written;
}

OrderedJson SchemaWalk::Array(const Schema& schema) {
  const OrderedJson* prefix = ListOf(schema, "prefixItems");
  const OrderedJson* unique = Find(schema.json, "uniqueItems");
  std::int64_t least = Count(schema, "minItems", kMaxSchemaCount + 1).value_or(0);
  const std::optional<std::int64_t> most = Count(schema, "maxItems", kCountCap);
  if (!ok()) return false;
  if (unique != nullptr && !(*unique == false)) {
    return Refuse(schema.place, "uniqueItems", "is supported only as false");
  }
  if (least > kMaxSchemaCount) {
    return Refuse(schema.place, "minItems", Cat("is supported up to ", kMaxSchemaCount));
  }
  OrderedJson first = OrderedJson::array();
  bool closed = false;
  for (std::size_t i = 0; prefix != nullptr && i < prefix->size(); ++i) {
    OrderedJson item = WriteUnder(schema, "prefixItems", i);
    if (!ok()) return false;
    closed = closed || item.is_boolean() || (most && static_cast<std::int64_t>(i) >= *most);
    if (!closed) first.push_back(std::move(item));
  }
  OrderedJson items = OrderedJson::object();
  const std::string_view keyword = schema.json.contains("items") ? "items" : "unevaluatedItems";
  if (const OrderedJson* value = Find(schema.json, keyword)) {
    if (value->is_array()) {
      return Refuse(schema.place, keyword, "must be one schema; a list is \"prefixItems\"");
    }
    items = WriteUnder(schema, keyword);
  } else if (prefix != nullptr && least <= static_cast<std::int64_t>(first.size())) {
    items = false;
  }
  const auto length = static_cast<std::int64_t>(first.size());
  if (closed || (most && *most <= length)) items = false;
  if ((most && least > *most) || (items.is_boolean() && least > length)) return false;
  OrderedJson written{{"type", "array"}};
  if (!first.empty()) written["prefixItems"] = std::move(first);
  const bool open = !items.is_boolean();
  written["items"] = std::move(items);
  if (least > 0) written["minItems"] = least;
  if (most && open) written["maxItems"] = *most;
  return written;
}

}  // namespace flotilla::router
