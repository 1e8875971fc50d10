// The tests of the template language, and the methods of its strings, dicts and
// lists.
#include <algorithm>
#include <cctype>
#include <cmath>

#include "model/jinja/builtins.h"
#include "model/text/utf8.h"

namespace flotilla::jinja {
namespace {

const Text kEmpty;

// ---- Tests ----

Value IsOdd(Heap& heap, Value v, const Bound&, const Args&) {
  if (!v.is_integer()) return heap.Fail("odd/even of a '", TypeName(v), "'");
  return Value(v.as_integer() % 2 != 0);
}

Value IsEven(Heap& heap, Value v, const Bound& bound, const Args& args) {
  return Value(!Truthy(IsOdd(heap, v, bound, args)));
}

Value IsDivisible(Heap& heap, Value v, const Bound& bound, const Args&) {
  const int64_t by = bound.integer(heap, 0, 0);
  if (!v.is_integer() || by == 0) return heap.Fail("divisibleby wants integers, and not zero");
  return Value(by == -1 || v.as_integer() % by == 0);
}

Value IsIn(Heap& heap, Value v, const Bound& bound, const Args&) {
  const Value container = bound[0];
  if (container.is(Type::kText) && v.is(Type::kText)) {
    return Value(heap.ChargeBytes(container.text->bytes().size()) &&
                 FindText(container.text->bytes(), v.text->bytes()) != std::string::npos);
  }
  if (container.is(Type::kDict)) return Value(container.dict->Find(heap, v) != nullptr);
  const std::vector<Value> items = Items(heap, container);
  return Value(std::ranges::any_of(items, [&](Value each) { return Equal(heap, each, v); }));
}

// A test of the type alone.
template <Type... types>
Value IsType(Heap&, Value v, const Bound&, const Args&) {
  return Value((v.is(types) || ...));
}

// True and False are integers in Python, but not for the test `integer`.
template <bool wanted>
Value IsBoolean(Heap&, Value v, const Bound&, const Args&) {
  return Value(v.is(Type::kBool) && v.boolean == wanted);
}

Value IsEqual(Heap& heap, Value v, const Bound& bound, const Args&) {
  return Value(Equal(heap, v, bound[0]));
}
Value IsNotEqual(Heap& heap, Value v, const Bound& bound, const Args&) {
  return Value(!Equal(heap, v, bound[0]));
}
Value IsLess(Heap& heap, Value v, const Bound& bound, const Args&) {
  return Value(Less(heap, v, bound[0]));
}
Value IsGreater(Heap& heap, Value v, const Bound& bound, const Args&) {
  return Value(Less(heap, bound[0], v));
}
Value IsAtMost(Heap& heap, Value v, const Bound& bound, const Args&) {
  return Value(Less(heap, v, bound[0]) || Equal(heap, v, bound[0]));
}
Value IsAtLeast(Heap& heap, Value v, const Bound& bound, const Args&) {
  return Value(Less(heap, bound[0], v) || Equal(heap, v, bound[0]));
}
Value IsDefined(Heap&, Value v, const Bound&, const Args&) {
  return Value(!v.is(Type::kUndefined));
}

constexpr Builtin kTests[] = {
    {"boolean", "", IsType<Type::kBool>},
    {"callable", "", IsType<Type::kCallable>},
    {"defined", "", IsDefined},
    {"divisibleby", "num", IsDivisible},
    {"eq", "other", IsEqual},
    {"equalto", "other", IsEqual},
    {"even", "", IsEven},
    {"false", "", IsBoolean<false>},
    {"float", "", IsType<Type::kFloat>},
    {"ge", "other", IsAtLeast},
    {"greaterthan", "other", IsGreater},
    {"gt", "other", IsGreater},
    {"in", "seq", IsIn},
    {"integer", "", IsType<Type::kInt>},
    // Undefined iterates as an empty list, so it counts as both.
    {"iterable", "", IsType<Type::kText, Type::kList, Type::kDict, Type::kUndefined>},
    {"le", "other", IsAtMost},
    {"lessthan", "other", IsLess},
    {"lt", "other", IsLess},
    {"mapping", "", IsType<Type::kDict>},
    {"ne", "other", IsNotEqual},
    {"none", "", IsType<Type::kNone>},
    {"number", "", IsType<Type::kInt, Type::kFloat, Type::kBool>},
    {"odd", "", IsOdd},
    {"sequence", "", IsType<Type::kText, Type::kList, Type::kDict, Type::kUndefined>},
    {"string", "", IsType<Type::kText>},
    {"true", "", IsBoolean<true>},
    {"undefined", "", IsType<Type::kUndefined>},
};

// ---- Methods of strings ----

template <bool left, bool right>
Value StripMethod(Heap& heap, Value self, const Bound& bound, const Args&) {
  const bool chosen = bound.has(0) && !bound[0].is(Type::kNone);
  return Strip(heap, *self.text, chosen ? &bound.text(heap, 0, kEmpty) : nullptr, left, right);
}

// startswith and endswith; a tuple means any of its strings.
template <bool start>
Value HasAffix(Heap& heap, Value self, const Bound& bound, const Args&) {
  const std::string& bytes = self.text->bytes();
  std::vector<Value> affixes = {bound[0]};
  if (bound[0].is(Type::kList) && bound[0].list->tuple) affixes = Items(heap, bound[0]);
  for (const Value affix : affixes) {
    if (!affix.is(Type::kText)) return heap.Fail("a string is wanted");
    const std::string& text = affix.text->bytes();
    if (text.size() <= bytes.size() && !heap.ChargeBytes(text.size())) return {};
    if (start ? bytes.starts_with(text) : bytes.ends_with(text)) return Value(true);
  }
  return Value(false);
}

// split(): the words between white space. After `limit` words the rest is one item.
Value SplitAtSpace(Heap& heap, const Text& text, int64_t limit) {
  const std::string_view bytes = text.bytes();
  std::vector<Value> parts;
  // The end of the run of characters from `at` that are all space (or all not space).
  const auto run_end = [&](size_t at, bool space) {
    while (at < bytes.size()) {
      const model::Utf8Part part = model::ReadUtf8(bytes, at);
      if (IsSpace(part.code_point) != space) break;
      at += part.bytes;
    }
    return at;
  };
  if (!heap.Charge(bytes.size() / 16)) return {};
  for (size_t at = run_end(0, true); at < bytes.size() && heap.ok(); --limit) {
    const size_t end = limit == 0 ? bytes.size() : run_end(at, false);
    Text part;
    part.Append(text, at, end);
    parts.push_back(heap.NewText(std::move(part)));
    at = run_end(end, true);
  }
  return heap.NewList(std::move(parts));
}

Value Split(Heap& heap, Value self, const Bound& bound, const Args&) {
  int64_t limit = bound.integer(heap, 1, -1);
  if (!bound.has(0) || bound[0].is(Type::kNone)) return SplitAtSpace(heap, *self.text, limit);
  const Text& separator = bound.text(heap, 0, kEmpty);
  if (separator.bytes().empty()) return heap.Fail("empty separator");
  const Text& text = *self.text;
  std::vector<Value> parts;
  if (!heap.ChargeBytes(text.bytes().size())) return {};
  for (size_t at = 0; heap.ok(); --limit) {
    const size_t found =
        limit == 0 ? std::string::npos : FindText(text.bytes(), separator.bytes(), at);
    Text part;
    part.Append(text, at, std::min(found, text.bytes().size()));
    parts.push_back(heap.NewText(std::move(part)));
    if (found == std::string::npos) break;
    at = found + separator.bytes().size();
  }
  return heap.NewList(std::move(parts));
}

Value ReplaceMethod(Heap& heap, Value self, const Bound& bound, const Args&) {
  return Replace(heap, *self.text, bound.text(heap, 0, kEmpty), bound.text(heap, 1, kEmpty),
                 bound.integer(heap, 2, -1));
}

Value JoinMethod(Heap& heap, Value self, const Bound& bound, const Args&) {
  const std::vector<Value> items = Items(heap, bound[0]);
  for (const Value item : items) {
    if (!item.is(Type::kText)) return heap.Fail("join wants strings, not ", TypeName(item));
  }
  return Join(heap, items, *self.text);
}

Value Find(Heap& heap, Value self, const Bound& bound, const Args&) {
  const std::string& bytes = self.text->bytes();
  const Text& wanted = bound.text(heap, 0, kEmpty);
  if (!heap.Charge(bytes.size() / 8)) return {};
  const size_t at = FindText(bytes, wanted.bytes());
  if (at == std::string::npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(CharacterOffsets(bytes.substr(0, at)).size()) - 1);
}

Value Count(Heap& heap, Value self, const Bound& bound, const Args&) {
  const std::string& wanted = bound.text(heap, 0, kEmpty).bytes();
  if (wanted.empty()) return heap.Fail("counting an empty string is not supported");
  const std::string& bytes = self.text->bytes();
  if (!heap.ChargeBytes(bytes.size())) return {};
  int64_t count = 0;
  for (size_t at = FindText(bytes, wanted); at != std::string::npos && heap.Charge(1);
       at = FindText(bytes, wanted, at + wanted.size())) {
    ++count;
  }
  return Value(count);
}

// True if there is a byte and all bytes satisfy `test`.
template <int (*test)(int)>
Value AllAre(Heap& heap, Value self, const Bound&, const Args&) {
  const std::string& bytes = self.text->bytes();
  if (!heap.Charge(bytes.size() / 16)) return {};
  return Value(!bytes.empty() &&
               std::ranges::all_of(bytes, [](unsigned char c) { return c < 0x80 && test(c); }));
}

template <Text (*map)(const Text&)>
Value TextMethod(Heap& heap, Value self, const Bound&, const Args&) {
  return heap.Charge(self.text->cost()) ? heap.NewText(map(*self.text)) : Value();
}

constexpr Builtin kTextMethods[] = {
    {"capitalize", "", TextMethod<Capitalized>},
    {"count", "sub", Count},
    {"endswith", "suffix", HasAffix<false>},
    {"find", "sub", Find},
    {"isalpha", "", AllAre<std::isalpha>},
    {"isdigit", "", AllAre<std::isdigit>},
    {"join", "iterable", JoinMethod},
    {"lower", "", TextMethod<Lowered>},
    {"lstrip", "chars", StripMethod<true, false>},
    {"replace", "old new count", ReplaceMethod},
    {"rstrip", "chars", StripMethod<false, true>},
    {"split", "sep maxsplit", Split},
    {"startswith", "prefix", HasAffix<true>},
    {"strip", "chars", StripMethod<true, true>},
    {"title", "", TextMethod<TitleCased>},
    {"upper", "", TextMethod<Uppered>},
};

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
    {"get", "key default", DictGet},
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

Value ReadOnly(Heap& heap, Value, const Bound&, const Args&) {
  return heap.Fail("lists of a template cannot be changed");
}

constexpr Builtin kListMethods[] = {
    {"append", "object", ReadOnly},       {"count", "value", ListCount},
    {"extend", "object", ReadOnly},       {"index", "value", ListIndex},
    {"insert", "index object", ReadOnly}, {"pop", "index", ReadOnly},
};

std::span<const Builtin> MethodsOf(Value self) {
  switch (self.type) {
    case Type::kText:
      return kTextMethods;
    case Type::kDict:
      return kDictMethods;
    case Type::kList:
      return kListMethods;
    default:
      return {};
  }
}

}  // namespace

bool IsTest(std::string_view name) {
  return std::ranges::find(kTests, name, &Builtin::name) != std::end(kTests);
}

bool CallTest(Heap& heap, std::string_view name, Value input, const Args& args) {
  return Truthy(CallBuiltin(heap, kTests, name, input, args));
}

bool HasMethod(Value self, std::string_view name) {
  const std::span<const Builtin> methods = MethodsOf(self);
  return std::ranges::find(methods, name, &Builtin::name) != methods.end();
}

Value CallMethod(Heap& heap, Value self, std::string_view name, const Args& args) {
  return CallBuiltin(heap, MethodsOf(self), name, self, args);
}

}  // namespace flotilla::jinja
