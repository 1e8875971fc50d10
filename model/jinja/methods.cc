// The methods of the template language, but those of strings.
#include <algorithm>

#include "model/jinja/builtins.h"

namespace flotilla::jinja {
namespace {

// ---- Methods of dicts ----

Value DictGet(Heap& heap, Value self, const Bound& bound, const Args&) {
  const Value* item = self.dict->Find(heap, bound[0]);
  return item != nullptr ? *item : bound.has(1) ? bound[1] : Value::None();
}

template <bool keys>
Value DictParts(Heap& heap, Value self, const Bound&, const Args&) {
  std::vector<Value> parts;
  for (const auto& [key, value] : self.dict->items) parts.push_back(keys ? key : value);
  return heap.NewList(std::move(parts));
}

constexpr Builtin kDictMethods[] = {
    {"copy", "", [](Heap&, Value v, const Bound&, const Args&) { return v; }},
    {"get", "key default=", DictGet},
    {"items", "",
     [](Heap& h, Value v, const Bound&, const Args&) { return DictItems(h, *v.dict); }},
    {"keys", "", DictParts<true>},
    {"values", "", DictParts<false>},
};

// ---- Methods of lists ----

Value ListIndex(Heap& heap, Value self, const Bound& bound, const Args&) {
  const auto& items = self.list->items;
  const auto it =
      std::ranges::find_if(items, [&](Value each) { return Equal(heap, each, bound[0]); });
  if (it == items.end()) return heap.Fail("the value is not in the list");
  return Value(static_cast<int64_t>(it - items.begin()));
}

Value ListCount(Heap& heap, Value self, const Bound& bound, const Args&) {
  return Value(static_cast<int64_t>(std::ranges::count_if(
      self.list->items, [&](Value each) { return Equal(heap, each, bound[0]); })));
}

constexpr Builtin kListMethods[] = {
    {"copy", "", [](Heap&, Value v, const Bound&, const Args&) { return v; }},
    {"count", "value", ListCount},
    {"index", "value", ListIndex},
};

// ---- Methods of loop and of what cycler() returns ----

Value LoopCycle(Heap& heap, Value self, const Bound&, const Args& args) {
  if (args.positional.empty() || !args.named.empty()) {
    return heap.Fail("loop.cycle wants the items to go through");
  }
  return args.positional[self.loop->index0 % args.positional.size()];
}

Value LoopChanged(Heap& heap, Value self, const Bound&, const Args& args) {
  const Loop& loop = *self.loop;
  if (!args.named.empty()) return heap.Fail("loop.changed takes no named arguments");
  const Value now = heap.NewList({args.positional.begin(), args.positional.end()}, /*tuple=*/true);
  if (loop.called && Equal(heap, loop.changed, now)) return Value(false);
  loop.changed = now;
  loop.called = true;
  return Value(true);
}

constexpr Builtin kLoopMethods[] = {{"changed", "*", LoopChanged}, {"cycle", "*", LoopCycle}};

Value CyclerNext(Heap&, Value self, const Bound&, const Args&) {
  Cycler& cycler = *self.cycler;
  const size_t now = cycler.at;
  cycler.at = (now + 1) % cycler.items.size();
  return cycler.items[now];
}

Value CyclerReset(Heap&, Value self, const Bound&, const Args&) {
  self.cycler->at = 0;
  return Value::None();
}

constexpr Builtin kCyclerMethods[] = {{"next", "", CyclerNext}, {"reset", "", CyclerReset}};

std::span<const Builtin> MethodsOf(Value self) {
  switch (self.type) {
    case Type::kText:
      return TextMethods();
    case Type::kDict:
      return kDictMethods;
    case Type::kList:
      return kListMethods;
    case Type::kLoop:
      return kLoopMethods;
    case Type::kCycler:
      return kCyclerMethods;
    default:
      return {};
  }
}

}  // namespace

bool HasMethod(Value self, std::string_view name) {
  const std::span<const Builtin> methods = MethodsOf(self);
  return std::ranges::find(methods, name, &Builtin::name) != methods.end();
}

bool IsForbiddenMethod(Type type, std::string_view name) {
  constexpr std::string_view kOfLists[] = {"append", "clear",  "extend",  "insert",
                                           "pop",    "remove", "reverse", "sort"};
  constexpr std::string_view kOfDicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto has = [name](std::span<const std::string_view> names) {
    return std::ranges::find(names, name) != names.end();
  };
  return (type == Type::kList && has(kOfLists)) || (type == Type::kDict && has(kOfDicts));
}

Value CallMethod(Heap& heap, Value self, std::string_view name, const Args& args) {
  return CallBuiltin(heap, MethodsOf(self), name, self, args);
}

}  // namespace flotilla::jinja
