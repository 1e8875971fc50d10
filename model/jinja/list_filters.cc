// The filters of the template language that take what can be iterated.
#include <algorithm>

#include "model/jinja/builtins.h"
#include "model/jinja/operators.h"

namespace flotilla::jinja {
namespace {

// The value of a path argument: none where it was not given.
Value PathOf(const Bound& bound, size_t i) { return bound.has(i) ? bound[i] : Value::None(); }

// ---- Order ----

struct Keyed {
  std::vector<Value> keys;
  Value item;
};

// Compares keys as Python compares lists of them: those that are equal need no order.
bool KeysLess(Heap& heap, const Keyed& a, const Keyed& b) {
  for (size_t i = 0; i < a.keys.size(); ++i) {
    const Value x = a.keys[i], y = b.keys[i];
    const bool last = i + 1 == a.keys.size() && x.type == y.type && x.is(Type::kText);
    if (last || !Equal(heap, x, y)) return Less(heap, x, y);
  }
  return false;
}

template <typename LessThan>
std::vector<Value> Sorted(std::vector<Keyed> keyed, bool reverse, LessThan less) {
  // A reversed sort is still stable, as in Python.
  if (reverse) std::ranges::reverse(keyed);
  std::ranges::stable_sort(keyed, less);
  if (reverse) std::ranges::reverse(keyed);
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (const Keyed& each : keyed) items.push_back(each.item);
  return items;
}

auto FirstKeyLess(Heap& heap) {
  return [&heap](const Keyed& a, const Keyed& b) { return Less(heap, a.keys[0], b.keys[0]); };
}

// attribute= may name several, with commas between them.
Value Sort(Heap& heap, Value input, const Bound& bound, const Args&) {
  const bool fold_case = !bound.truth(1, false);
  std::vector<Getter> getters;
  if (bound.has(2) && bound[2].is(Type::kText)) {
    std::string_view rest = bound[2].text->bytes();
    for (bool more = true; more && heap.ok();) {
      const size_t comma = rest.find(',');
      more = comma != std::string_view::npos;
      getters.emplace_back(heap, heap.NewText(rest.substr(0, comma)), fold_case);
      rest.remove_prefix(more ? comma + 1 : rest.size());
    }
  } else {
    getters.emplace_back(heap, PathOf(bound, 2), fold_case);
  }
  std::vector<Keyed> keyed;
  for (const Value item : Items(heap, input)) {
    Keyed& next = keyed.emplace_back();
    next.item = item;
    for (const Getter& getter : getters) {
      if (!heap.Charge(1)) return {};
      next.keys.push_back(getter(heap, item));
    }
  }
  return heap.NewList(Sorted(std::move(keyed), bound.truth(0, false),
                             [&](const Keyed& a, const Keyed& b) { return KeysLess(heap, a, b); }));
}

Value DictSort(Heap& heap, Value input, const Bound& bound, const Args&) {
  if (!input.is(Type::kDict)) return heap.Fail("dictsort of a '", TypeName(input), "'");
  const Text by_key("key", false);
  const std::string& by = bound.text(heap, 1, by_key).bytes();
  if (by != "key" && by != "value") return heap.Fail("dictsort by='", by, "', not key or value");
  const Getter fold(heap, Value::None(), !bound.truth(0, false));
  std::vector<Keyed> keyed;
  for (const Value pair : Items(heap, DictItems(heap, *input.dict))) {
    keyed.push_back({{fold(heap, pair.list->items[by == "value" ? 1 : 0])}, pair});
  }
  if (!heap.ok()) return {};
  return heap.NewList(Sorted(std::move(keyed), bound.truth(2, false), FirstKeyLess(heap)));
}

Value GroupBy(Heap& heap, Value input, const Bound& bound, const Args&) {
  const bool case_sensitive = bound.truth(2, false);
  const Getter key(heap, bound[0], !case_sensitive, PathOf(bound, 1));
  const Getter shown(heap, bound[0], false, PathOf(bound, 1));
  std::vector<Keyed> keyed;
  for (const Value item : Items(heap, input)) {
    if (!heap.Charge(1)) return {};
    keyed.push_back({{key(heap, item)}, item});
  }
  std::vector<Value> groups;
  std::vector<Value> members;
  Value member_key;
  const auto end_group = [&] {
    if (members.empty()) return;
    const Value name = shown(heap, members[0]);
    groups.push_back(heap.NewList({name, heap.NewList(std::exchange(members, {}))},
                                  /*tuple=*/true, /*group=*/true));
  };
  for (const Value item : Sorted(std::move(keyed), false, FirstKeyLess(heap))) {
    const Value next = key(heap, item);
    if (!members.empty() && !Equal(heap, member_key, next)) end_group();
    if (!heap.ok()) return {};
    member_key = next;
    members.push_back(item);
  }
  end_group();
  return heap.NewList(std::move(groups));
}

template <bool most>
Value Extreme(Heap& heap, Value input, const Bound& bound, const Args&) {
  const Getter getter(heap, PathOf(bound, 1), !bound.truth(0, false));
  Value best, best_key;
  bool first = true;
  for (const Value item : Items(heap, input)) {
    const Value key = getter(heap, item);
    const bool better = std::exchange(first, false) ||
                        (most ? Less(heap, best_key, key) : Less(heap, key, best_key));
    if (!heap.ok()) return {};
    if (!better) continue;
    best = item;
    best_key = key;
  }
  return best;
}

Value Unique(Heap& heap, Value input, const Bound& bound, const Args&) {
  const Getter getter(heap, PathOf(bound, 1), !bound.truth(0, false));
  Dict seen;
  std::vector<Value> items;
  for (const Value item : Items(heap, input)) {
    const Value key = getter(heap, item);
    if (!heap.Charge(1)) return {};
    if (seen.Find(heap, key) != nullptr) continue;
    if (!seen.Set(heap, key, item)) return heap.Fail("unhashable type: '", TypeName(key), "'");
    items.push_back(item);
  }
  return heap.NewList(std::move(items));
}

// ---- Parts ----

// One list with `fill` up to `size` items.
Value Filled(Heap& heap, std::vector<Value> items, size_t size, Value fill) {
  if (items.size() < size) {
    if (!heap.Charge((size - items.size()) / 4)) return {};
    items.resize(size, fill);
  }
  return heap.NewList(std::move(items));
}

Value Batch(Heap& heap, Value input, const Bound& bound, const Args&) {
  const int64_t count = bound.integer(heap, 0, 0);
  const bool fills = bound.has(1) && !bound[1].is(Type::kNone);
  std::vector<Value> batches, batch;
  for (const Value item : Items(heap, input)) {
    if (!heap.ok()) return {};
    if (static_cast<int64_t>(batch.size()) == count) {
      batches.push_back(heap.NewList(std::exchange(batch, {})));
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    const size_t size = fills && count > 0 ? static_cast<size_t>(count) : 0;
    batches.push_back(Filled(heap, std::move(batch), size, bound[1]));
  }
  return heap.NewList(std::move(batches));
}

Value SliceFilter(Heap& heap, Value input, const Bound& bound, const Args&) {
  const int64_t count = bound.integer(heap, 0, 0);
  if (count == 0) return heap.Fail("slice wants the number of slices, which is not zero");
  const bool fills = bound.has(1) && !bound[1].is(Type::kNone);
  const std::vector<Value> items = Items(heap, input);
  const auto size = static_cast<int64_t>(items.size());
  std::vector<Value> slices;
  size_t begin = 0;
  for (int64_t i = 0; i < count && heap.ok(); ++i) {
    const size_t length = static_cast<size_t>(size / count + (i < size % count ? 1 : 0));
    std::vector<Value> slice(items.begin() + static_cast<std::ptrdiff_t>(begin),
                             items.begin() + static_cast<std::ptrdiff_t>(begin + length));
    begin += length;
    if (fills && i >= size % count) slice.push_back(bound[1]);
    slices.push_back(heap.NewList(std::move(slice)));
  }
  return heap.NewList(std::move(slices));
}

Value FirstOrLast(Heap& heap, Value input, bool first) {
  const std::vector<Value> items = Items(heap, input);
  return items.empty() ? Value() : first ? items.front() : items.back();
}

Value Reverse(Heap& heap, Value input, const Bound&, const Args&) {
  std::vector<Value> items = Items(heap, input);
  std::ranges::reverse(items);
  if (input.is(Type::kText)) return Join(heap, items, Text());
  return heap.NewList(std::move(items));
}

// ---- Each item ----

// The items of what these filters get. As in jinja2, what is false has none.
std::vector<Value> ItemsIfAny(Heap& heap, Value input) {
  return Truthy(input) ? Items(heap, input) : std::vector<Value>();
}

// select, reject, selectattr, rejectattr: ([attribute,] [test, arguments...]).
template <bool by_attribute, bool keep>
Value Select(Heap& heap, Value input, const Bound&, const Args& args) {
  std::span<const Value> rest = args.positional;
  Value attribute = Value::None();
  if (by_attribute) {
    if (rest.empty()) return heap.Fail("an attribute name is wanted");
    attribute = rest[0];
    rest = rest.subspan(1);
  }
  const Getter getter(heap, attribute);
  std::string_view test;
  if (!rest.empty()) {
    if (!rest[0].is(Type::kText)) return heap.Fail("a test name is wanted");
    test = rest[0].text->bytes();
    rest = rest.subspan(1);
  }
  std::vector<Value> kept;
  for (const Value item : ItemsIfAny(heap, input)) {
    if (!heap.Charge(1)) return {};
    const Value tested = getter(heap, item);
    const bool passes =
        test.empty() ? Truthy(tested) : CallTest(heap, test, tested, Args{rest, args.named});
    if (passes == keep) kept.push_back(item);
  }
  return heap.NewList(std::move(kept));
}

// map('filter', arguments...) or map(attribute='name', default=value).
Value Map(Heap& heap, Value input, const Bound&, const Args& args) {
  Value attribute, fallback = Value::None();
  std::string_view unknown;
  for (const auto& [name, value] : args.named) {
    if (name == "attribute") {
      attribute = value;
    } else if (name == "default") {
      fallback = value;
    } else {
      unknown = name;
    }
  }
  const bool by_attribute = args.positional.empty() && !attribute.is(Type::kUndefined);
  if (by_attribute && !unknown.empty()) return heap.Fail("map takes no argument '", unknown, "'");
  if (!by_attribute && (args.positional.empty() || !args.positional[0].is(Type::kText))) {
    return heap.Fail("map wants a filter name or attribute=");
  }
  const Getter getter(heap, by_attribute ? attribute : Value::None(), false, fallback);
  std::vector<Value> mapped;
  for (const Value item : ItemsIfAny(heap, input)) {
    if (!heap.Charge(1)) return {};
    mapped.push_back(by_attribute ? getter(heap, item)
                                  : CallFilter(heap, args.positional[0].text->bytes(), item,
                                               Args{args.positional.subspan(1), args.named}));
  }
  return heap.NewList(std::move(mapped));
}

Value Sum(Heap& heap, Value input, const Bound& bound, const Args&) {
  Value sum = bound.has(1) ? bound[1] : Value(int64_t{0});
  if (sum.is(Type::kText)) return heap.Fail("sum() can't sum strings");
  const Getter getter(heap, PathOf(bound, 0));
  for (const Value item : Items(heap, input)) {
    if (!heap.Charge(1)) return {};
    sum = Arithmetic(heap, Op::kAdd, sum, getter(heap, item));
  }
  return sum;
}

Value JoinFilter(Heap& heap, Value input, const Bound& bound, const Args&) {
  std::vector<Value> items = Items(heap, input);
  const Getter getter(heap, PathOf(bound, 1));
  for (Value& item : items) item = getter(heap, item);
  return Join(heap, items, bound.has(0) ? AsText(heap, bound[0]) : Text());
}

Value ItemsFilter(Heap& heap, Value input, const Bound&, const Args&) {
  if (input.is(Type::kUndefined)) return heap.NewList({});
  if (!input.is(Type::kDict)) return heap.Fail("items of a '", TypeName(input), "'");
  return DictItems(heap, *input.dict);
}

Value Length(Heap& heap, Value input, const Bound&, const Args&) {
  switch (input.type) {
    case Type::kUndefined:
      return Value(int64_t{0});
    case Type::kText:
      return Value(CountCharacters(heap, *input.text));
    case Type::kList:
      return Value(static_cast<int64_t>(input.list->items.size()));
    case Type::kDict:
      return Value(static_cast<int64_t>(input.dict->items.size()));
    default:
      return heap.Fail("object of type '", TypeName(input), "' has no length");
  }
}

constexpr Builtin kListFilters[] = {
    {"batch", "linecount fill_with=", Batch},
    {"count", "", Length},
    {"dictsort", "case_sensitive= by= reverse=", DictSort},
    {"first", "",
     [](Heap& h, Value v, const Bound&, const Args&) { return FirstOrLast(h, v, true); }},
    {"groupby", "attribute default= case_sensitive=", GroupBy},
    {"items", "", ItemsFilter},
    {"join", "d= attribute=", JoinFilter},
    {"last", "",
     [](Heap& h, Value v, const Bound&, const Args&) { return FirstOrLast(h, v, false); }},
    {"length", "", Length},
    {"list", "",
     [](Heap& h, Value v, const Bound&, const Args&) { return h.NewList(Items(h, v)); }},
    {"map", "*", Map},
    {"max", "case_sensitive= attribute=", Extreme<true>},
    {"min", "case_sensitive= attribute=", Extreme<false>},
    {"reject", "*", Select<false, false>},
    {"rejectattr", "*", Select<true, false>},
    {"reverse", "", Reverse},
    {"select", "*", Select<false, true>},
    {"selectattr", "*", Select<true, true>},
    {"slice", "slices fill_with=", SliceFilter},
    {"sort", "reverse= case_sensitive= attribute=", Sort},
    {"sum", "attribute= start=", Sum},
    {"unique", "case_sensitive= attribute=", Unique},
};

}  // namespace

std::span<const Builtin> ListFilters() { return kListFilters; }

}  // namespace flotilla::jinja
