#include "model/jinja/globals.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace flotilla::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // as Jinja's sandbox has it

Value Range(Heap& heap, const RunOptions&, const Bound& bound, const Args&) {
  int64_t start = 0;
  int64_t stop = bound.integer(heap, 0, 0);
  if (bound.has(1)) {
    start = stop;
    stop = bound.integer(heap, 1, 0);
  }
  const int64_t step = bound.integer(heap, 2, 1);
  if (!heap.ok()) return {};
  if (step == 0) return heap.Fail("range() arg 3 must not be zero");
  std::vector<Value> items;
  // Beyond these bounds the list could not be made anyway; within them no sum overflows.
  constexpr int64_t kFar = int64_t{1} << 60;
  if (std::max({start, stop, step}) > kFar || std::min({start, stop, step}) < -kFar) {
    return heap.Exhaust("the size of a range");
  }
  for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
    if (items.size() >= static_cast<size_t>(kMaxRange)) return heap.Exhaust("the size of a range");
    items.push_back(Value(i));
  }
  return heap.NewList(std::move(items));
}

Value RaiseException(Heap& heap, const RunOptions&, const Bound& bound, const Args&) {
  Text message;
  AppendStr(heap, bound[0], message);
  return heap.Raise(message.bytes());
}

Value StrftimeNow(Heap& heap, const RunOptions& options, const Bound& bound, const Args&) {
  const Text date("%d %b %Y", false);
  const Text& format = bound.text(heap, 0, date);
  if (!options.strftime_now) return heap.Fail("strftime_now is not available");
  return heap.NewText(options.strftime_now(format.bytes()));
}

Value Joiner(Heap& heap, const RunOptions&, const Bound& bound, const Args&) {
  const Value separator = bound.has(0) ? bound[0] : heap.NewText(", ");
  return heap.NewCallable({.kind = Callable::Kind::kJoiner, .self = separator});
}

Value MakeCycler(Heap& heap, const RunOptions&, const Bound&, const Args& args) {
  if (args.positional.empty() || !args.named.empty()) {
    return heap.Fail("cycler() wants the items to go through");
  }
  return heap.NewCycler({args.positional.begin(), args.positional.end()});
}

// The arguments of Python's dict(): a dict or pairs, then names.
Dict DictOf(Heap& heap, const Args& args) {
  Dict dict;
  if (args.positional.size() > 1) heap.Fail("a dict is made of one dict or list, and of names");
  for (const Value from : args.positional) {
    for (const Value item :
         from.is(Type::kDict) ? Items(heap, DictItems(heap, *from.dict)) : Items(heap, from)) {
      const std::vector<Value> pair = Items(heap, item);
      if (!heap.Charge(1)) return dict;
      if (pair.size() != 2 || !dict.Set(heap, pair[0], pair[1])) {
        heap.Fail("a dict is made of pairs of a key and a value");
      }
    }
  }
  for (const auto& [key, value] : args.named) dict.Set(heap, heap.NewText(key), value);
  return dict;
}

Value MakeDict(Heap& heap, const RunOptions&, const Bound&, const Args& args) {
  return heap.NewDict(DictOf(heap, args));
}

Value MakeNamespace(Heap& heap, const RunOptions&, const Bound&, const Args& args) {
  const Dict dict = DictOf(heap, args);
  heap.Charge(4 + dict.items.size());
  const Value space = heap.NewNamespace();
  for (const auto& [key, value] : dict.items) {
    if (!key.is(Type::kText) || !heap.ChargeBytes(key.text->bytes().size())) continue;
    space.space->attributes[key.text->bytes()] = value;
  }
  return space;
}

struct Global {
  std::string_view name;
  std::string_view params;  // as a Builtin has them
  Value (*call)(Heap& heap, const RunOptions& options, const Bound& bound, const Args& args);
};

constexpr Global kGlobals[] = {
    {"cycler", "*", MakeCycler},
    {"dict", "*", MakeDict},
    {"joiner", "sep=", Joiner},
    {"namespace", "*", MakeNamespace},
    {"raise_exception", "message=", RaiseException},
    {"range", "start stop= step=", Range},
    {"strftime_now", "format=", StrftimeNow},
};

}  // namespace

Value FindGlobal(Heap& heap, std::string_view name) {
  const auto* row = std::ranges::find(kGlobals, name, &Global::name);
  if (row == std::end(kGlobals)) return {};
  return heap.NewCallable({.kind = Callable::Kind::kGlobal, .name = row->name});
}

Value CallGlobal(Heap& heap, const RunOptions& options, std::string_view name, const Args& args) {
  const auto* row = std::ranges::find(kGlobals, name, &Global::name);
  const Bound bound(heap, name, row->params, args);
  return heap.ok() ? row->call(heap, options, bound, args) : Value();
}

}  // namespace flotilla::jinja
