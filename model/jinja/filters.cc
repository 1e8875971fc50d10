// The filters of the template language.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "model/jinja/builtins.h"

namespace flotilla::jinja {
namespace {

const Text kEmpty;

// The input of a text filter. Strings stay as they are; other values become printed text.
Text AsText(Heap& heap, Value value) {
  Text text;
  if (heap.Charge(value.is(Type::kText) ? value.text->cost() : 1)) {
    AppendStr(heap, value, text);
  }
  return text;
}

// x.a.0.b for the path "a.0.b"; undefined where the path ends early.
Value AtPath(Heap& heap, Value value, Value path) {
  if (path.is_integer()) return GetItem(heap, value, path);
  if (!path.is(Type::kText)) return heap.Fail("an attribute name is wanted");
  std::string_view rest = path.text->bytes();
  while (!rest.empty() && !value.is(Type::kUndefined) && heap.Charge(1)) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view name = rest.substr(0, dot);
    rest.remove_prefix(std::min(dot + 1, rest.size()));
    int64_t index = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), index);
    if (parsed.ec == std::errc() && parsed.ptr == name.data() + name.size()) {
      value = GetItem(heap, value, Value(index));
    } else {
      value = GetItem(heap, value, heap.NewText(name));
    }
  }
  return value;
}

// The key by which items are ordered and compared: an attribute, and the case of letters only
// if `case_sensitive`.
Value SortKey(Heap& heap, Value item, Value attribute, bool case_sensitive) {
  if (!attribute.is(Type::kUndefined) && !attribute.is(Type::kNone)) {
    item = AtPath(heap, item, attribute);
  }
  if (case_sensitive || !item.is(Type::kText)) return item;
  return heap.Charge(item.text->cost()) ? heap.NewText(Lowered(*item.text)) : Value();
}

struct Keyed {
  Value key;
  Value item;
};

Value Sorted(Heap& heap, std::vector<Keyed> keyed, bool reverse) {
  // A reversed sort is still stable, as in Python.
  if (reverse) std::ranges::reverse(keyed);
  std::ranges::stable_sort(
      keyed, [&](const Keyed& a, const Keyed& b) { return Less(heap, a.key, b.key); });
  if (reverse) std::ranges::reverse(keyed);
  std::vector<Value> items;
  for (const Keyed& each : keyed) items.push_back(each.item);
  return heap.NewList(std::move(items));
}

Value Sort(Heap& heap, Value input, const Bound& bound, const Args&) {
  std::vector<Keyed> keyed;
  for (const Value item : Items(heap, input)) {
    keyed.push_back({SortKey(heap, item, bound[2], bound.truth(1, false)), item});
  }
  return Sorted(heap, std::move(keyed), bound.truth(0, false));
}

Value DictSort(Heap& heap, Value input, const Bound& bound, const Args&) {
  if (!input.is(Type::kDict)) return heap.Fail("dictsort of a '", TypeName(input), "'");
  const Text by_key("key", false);
  const size_t part = bound.text(heap, 1, by_key).bytes() == "value" ? 1 : 0;
  std::vector<Keyed> keyed;
  for (const Value pair : Items(heap, DictItems(heap, *input.dict))) {
    keyed.push_back({SortKey(heap, pair.list->items[part], Value(), bound.truth(0, false)), pair});
  }
  return heap.ok() ? Sorted(heap, std::move(keyed), bound.truth(2, false)) : Value();
}

Value Unique(Heap& heap, Value input, const Bound& bound, const Args&) {
  std::vector<Value> keys;
  std::vector<Value> items;
  for (const Value item : Items(heap, input)) {
    if (!heap.ok()) return {};
    const Value key = SortKey(heap, item, bound[1], bound.truth(0, false));
    if (std::ranges::any_of(keys, [&](Value seen) { return Equal(heap, seen, key); })) continue;
    keys.push_back(key);
    items.push_back(item);
  }
  return heap.NewList(std::move(items));
}

// select, reject, selectattr, rejectattr: ([attribute,] [test, arguments...]).
Value Select(Heap& heap, Value input, const Args& args, bool by_attribute, bool keep) {
  std::span<const Value> rest = args.positional;
  Value attribute;
  if (by_attribute) {
    if (rest.empty()) return heap.Fail("an attribute name is wanted");
    attribute = rest[0];
    rest = rest.subspan(1);
  }
  std::string_view test;
  if (!rest.empty()) {
    if (!rest[0].is(Type::kText)) return heap.Fail("a test name is wanted");
    test = rest[0].text->bytes();
    rest = rest.subspan(1);
  }
  std::vector<Value> kept;
  for (const Value item : Items(heap, input)) {
    if (!heap.Charge(1)) return {};
    const Value tested = by_attribute ? AtPath(heap, item, attribute) : item;
    const bool passes =
        test.empty() ? Truthy(tested) : CallTest(heap, test, tested, Args{rest, args.named});
    if (passes == keep) kept.push_back(item);
  }
  return heap.NewList(std::move(kept));
}

// map('filter', arguments...) or map(attribute='name', default=value).
Value Map(Heap& heap, Value input, const Bound&, const Args& args) {
  Value attribute;
  Value fallback;
  for (const auto& [name, value] : args.named) {
    if (name == "attribute") attribute = value;
    if (name == "default") fallback = value;
  }
  const bool by_attribute = !attribute.is(Type::kUndefined);
  if (!by_attribute && (args.positional.empty() || !args.positional[0].is(Type::kText))) {
    return heap.Fail("map wants a filter name or attribute=");
  }
  std::vector<Value> mapped;
  for (const Value item : Items(heap, input)) {
    if (!heap.Charge(1)) return {};
    if (by_attribute) {
      const Value found = AtPath(heap, item, attribute);
      mapped.push_back(found.is(Type::kUndefined) ? fallback : found);
    } else {
      mapped.push_back(CallFilter(heap, args.positional[0].text->bytes(), item,
                                  Args{args.positional.subspan(1), args.named}));
    }
  }
  return heap.NewList(std::move(mapped));
}

Value ToJson(Heap& heap, Value input, const Bound& bound, const Args&) {
  JsonStyle style;
  constexpr int64_t kMaxIndent = 64;
  if (bound.has(0) && !bound[0].is(Type::kNone)) {
    style.indent = static_cast<int>(std::clamp<int64_t>(bound.integer(heap, 0, 0), 0, kMaxIndent));
    style.item_separator = ",";
  }
  style.ensure_ascii = bound.truth(1, false);
  style.sort_keys = bound.truth(2, false);
  if (bound.has(3) && !bound[3].is(Type::kNone)) {
    const Value pair = bound[3];
    if (!pair.is(Type::kList) || pair.list->items.size() != 2 ||
        !pair.list->items[0].is(Type::kText) || !pair.list->items[1].is(Type::kText)) {
      return heap.Fail("separators= wants a pair of strings");
    }
    style.item_separator = pair.list->items[0].text->bytes();
    style.key_separator = pair.list->items[1].text->bytes();
  }
  Text out;
  AppendJson(heap, input, style, out);
  return heap.NewText(std::move(out));
}

Value Length(Heap& heap, Value input, const Bound&, const Args&) {
  switch (input.type) {
    case Type::kUndefined:
      return Value(int64_t{0});
    case Type::kText:
      heap.Charge(input.text->bytes().size() / 8);
      return Value(static_cast<int64_t>(CharacterOffsets(input.text->bytes()).size()) - 1);
    case Type::kList:
      return Value(static_cast<int64_t>(input.list->items.size()));
    case Type::kDict:
      return Value(static_cast<int64_t>(input.dict->items.size()));
    default:
      return heap.Fail("object of type '", TypeName(input), "' has no length");
  }
}

Value Default(Heap&, Value input, const Bound& bound, const Args&) {
  const bool missing = input.is(Type::kUndefined) || (bound.truth(1, false) && !Truthy(input));
  return missing ? bound[0] : input;
}

Value FirstOrLast(Heap& heap, Value input, bool first) {
  const std::vector<Value> items = Items(heap, input);
  return items.empty() ? Value() : first ? items.front() : items.back();
}

Value Reverse(Heap& heap, Value input, const Bound&, const Args&) {
  std::vector<Value> items = Items(heap, input);
  std::ranges::reverse(items);
  if (input.is(Type::kText)) return Join(heap, items, kEmpty);
  return heap.NewList(std::move(items));
}

Value ToInt(Heap& heap, Value input, const Bound& bound, const Args&) {
  const Value fallback(bound.integer(heap, 0, 0));
  if (input.is_integer()) return Value(input.as_integer());
  double real = 0;
  if (input.is(Type::kFloat)) {
    real = input.real;
  } else if (input.is(Type::kText)) {
    const Value stripped = Strip(heap, *input.text, nullptr, true, true);
    if (!heap.ok()) return {};
    const std::string& text = stripped.text->bytes();
    int64_t integer = 0;
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + text.starts_with('+'), end, integer);
    if (parsed.ec == std::errc() && parsed.ptr == end) return Value(integer);
    const auto as_real = std::from_chars(text.data(), end, real);
    if (as_real.ec != std::errc() || as_real.ptr != end) return fallback;
  } else {
    return fallback;
  }
  return std::fabs(real) < 0x1p63 ? Value(static_cast<int64_t>(real)) : fallback;
}

Value ToFloat(Heap& heap, Value input, const Bound& bound, const Args&) {
  const Value fallback = bound.has(0) ? bound[0] : Value(0.0);
  if (input.is_number()) return Value(input.as_real());
  if (!input.is(Type::kText)) return fallback;
  const Value stripped = Strip(heap, *input.text, nullptr, true, true);
  if (!heap.ok()) return {};
  const std::string& text = stripped.text->bytes();
  double real = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), real);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
  return whole ? Value(real) : fallback;
}

Value Abs(Heap& heap, Value input, const Bound&, const Args&) {
  if (input.is(Type::kFloat)) return Value(std::fabs(input.real));
  if (!input.is_integer()) return heap.Fail("abs of a '", TypeName(input), "'");
  if (input.as_integer() == INT64_MIN) return heap.Fail("integer overflow");
  return Value(std::abs(input.as_integer()));
}

Value Indent(Heap& heap, Value input, const Bound& bound, const Args&) {
  constexpr int64_t kMaxWidth = 1000;
  Text margin("    ", false);
  if (bound.has(0) && bound[0].is(Type::kText)) {
    margin = *bound[0].text;
  } else if (bound.has(0)) {
    const int64_t width = std::clamp<int64_t>(bound.integer(heap, 0, 4), 0, kMaxWidth);
    margin = Text(std::string(static_cast<size_t>(width), ' '), false);
  }
  const bool first = bound.truth(1, false);
  const bool blank = bound.truth(2, false);
  const Text text = AsText(heap, input);
  const std::string& bytes = text.bytes();
  Text out;
  for (size_t at = 0; heap.Charge(1 + margin.cost());) {
    const size_t newline = std::min(bytes.find('\n', at), bytes.size());
    if (at == 0 ? first : (blank || newline > at)) out.Append(margin);
    out.Append(text, at, newline);
    if (newline == bytes.size()) break;
    out.Append("\n", false);
    at = newline + 1;
  }
  return heap.NewText(std::move(out));
}

Value JoinFilter(Heap& heap, Value input, const Bound& bound, const Args&) {
  std::vector<Value> items = Items(heap, input);
  if (bound.has(1)) {
    for (Value& item : items) item = AtPath(heap, item, bound[1]);
  }
  return Join(heap, items, bound.text(heap, 0, kEmpty));
}

Value ItemsFilter(Heap& heap, Value input, const Bound&, const Args&) {
  if (input.is(Type::kUndefined)) return heap.NewList({});
  if (!input.is(Type::kDict)) return heap.Fail("items of a '", TypeName(input), "'");
  return DictItems(heap, *input.dict);
}

Value ReplaceFilter(Heap& heap, Value input, const Bound& bound, const Args&) {
  return Replace(heap, AsText(heap, input), bound.text(heap, 0, kEmpty),
                 bound.text(heap, 1, kEmpty), bound.integer(heap, 2, -1));
}

Value Trim(Heap& heap, Value input, const Bound& bound, const Args&) {
  const bool chosen = bound.has(0) && !bound[0].is(Type::kNone);
  return Strip(heap, AsText(heap, input), chosen ? &bound.text(heap, 0, kEmpty) : nullptr, true,
               true);
}

// A filter that maps a text; AsText turns other values into text.
template <Text (*map)(const Text&)>
Value TextFilter(Heap& heap, Value input, const Bound&, const Args&) {
  return heap.NewText(map(AsText(heap, input)));
}

Text Same(const Text& text) { return text; }

constexpr Builtin kFilters[] = {
    {"abs", "", Abs},
    {"capitalize", "", TextFilter<Capitalized>},
    {"count", "", Length},
    {"d", "default_value boolean", Default},
    {"default", "default_value boolean", Default},
    {"dictsort", "case_sensitive by reverse", DictSort},
    {"first", "",
     [](Heap& h, Value v, const Bound&, const Args&) { return FirstOrLast(h, v, true); }},
    {"float", "default", ToFloat},
    {"indent", "width first blank", Indent},
    {"int", "default", ToInt},
    {"items", "", ItemsFilter},
    {"join", "d attribute", JoinFilter},
    {"last", "",
     [](Heap& h, Value v, const Bound&, const Args&) { return FirstOrLast(h, v, false); }},
    {"length", "", Length},
    {"list", "",
     [](Heap& h, Value v, const Bound&, const Args&) { return h.NewList(Items(h, v)); }},
    {"lower", "", TextFilter<Lowered>},
    {"map", "*", Map},
    {"reject", "*",
     [](Heap& h, Value v, const Bound&, const Args& a) { return Select(h, v, a, false, false); }},
    {"rejectattr", "*",
     [](Heap& h, Value v, const Bound&, const Args& a) { return Select(h, v, a, true, false); }},
    {"replace", "old new count", ReplaceFilter},
    {"reverse", "", Reverse},
    {"safe", "", TextFilter<Same>},
    {"select", "*",
     [](Heap& h, Value v, const Bound&, const Args& a) { return Select(h, v, a, false, true); }},
    {"selectattr", "*",
     [](Heap& h, Value v, const Bound&, const Args& a) { return Select(h, v, a, true, true); }},
    {"sort", "reverse case_sensitive attribute", Sort},
    {"string", "", TextFilter<Same>},
    {"title", "", TextFilter<Titled>},
    {"tojson", "indent ensure_ascii sort_keys separators", ToJson},
    {"trim", "chars", Trim},
    {"unique", "case_sensitive attribute", Unique},
    {"upper", "", TextFilter<Uppered>},
};

}  // namespace

bool IsFilter(std::string_view name) {
  return std::ranges::find(kFilters, name, &Builtin::name) != std::end(kFilters);
}

Value CallFilter(Heap& heap, std::string_view name, Value input, const Args& args) {
  return CallBuiltin(heap, kFilters, name, input, args);
}

}  // namespace flotilla::jinja
