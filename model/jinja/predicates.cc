// The tests of the template language: `x is NAME`.
#include <algorithm>
#include <cmath>

#include "model/jinja/builtins.h"
#include "model/jinja/operators.h"

namespace flotilla::jinja {
namespace {

// ---- Numbers ----

template <int64_t wanted>
Value HasParity(Heap& heap, Value v, const Bound&, const Args&) {
  const Value rest = Arithmetic(heap, Op::kMod, v, Value(int64_t{2}));
  return Value(Equal(heap, rest, Value(wanted)));
}

Value IsDivisible(Heap& heap, Value v, const Bound& bound, const Args&) {
  return Value(Equal(heap, Arithmetic(heap, Op::kMod, v, bound[0]), Value(int64_t{0})));
}

// ---- Comparisons ----

template <Op op>
Value IsCompared(Heap& heap, Value v, const Bound& bound, const Args&) {
  return Value(Compare(heap, op, v, bound[0]));
}

// Python's `is`. Texts have no identity of their own: equal ones that a template wrote are the
// same, since Python keeps only one of equal constants.
Value IsSame(Heap& heap, Value v, const Bound& bound, const Args&) {
  const Value other = bound[0];
  if (v.type != other.type) return Value(false);
  switch (v.type) {
    case Type::kUndefined:
    case Type::kNone:
      return Value(true);
    case Type::kBool:
    case Type::kInt:
    case Type::kFloat:
      return Value(Equal(heap, v, other));
    case Type::kText:
      return Value(v.text == other.text || (!v.text->has_user_text() &&
                                            !other.text->has_user_text() && Equal(heap, v, other)));
    default:
      return Value(v.space == other.space);
  }
}

// ---- Types ----

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

Value IsDefined(Heap&, Value v, const Bound&, const Args&) {
  return Value(!v.is(Type::kUndefined));
}

// ---- Others ----

template <bool (*is)(std::string_view)>
Value IsOfCase(Heap& heap, Value v, const Bound&, const Args&) {
  const Text text = AsText(heap, v);
  return Value(heap.Charge(text.bytes().size() / 16) && is(text.bytes()));
}

template <bool (*exists)(std::string_view)>
Value IsName(Heap& heap, Value v, const Bound&, const Args&) {
  if (!IsHashable(v)) return heap.Fail("unhashable type: '", TypeName(v), "'");
  return Value(v.is(Type::kText) && exists(v.text->bytes()));
}

constexpr Builtin kTests[] = {
    {"!=", "other", IsCompared<Op::kNe>},
    {"<", "other", IsCompared<Op::kLt>},
    {"<=", "other", IsCompared<Op::kLe>},
    {"==", "other", IsCompared<Op::kEq>},
    {">", "other", IsCompared<Op::kGt>},
    {">=", "other", IsCompared<Op::kGe>},
    {"boolean", "", IsType<Type::kBool>},
    // Jinja's undefined value has a function for calls, which fails.
    {"callable", "", IsType<Type::kCallable, Type::kLoop, Type::kUndefined>},
    {"defined", "", IsDefined},
    {"divisibleby", "num", IsDivisible},
    {"eq", "other", IsCompared<Op::kEq>},
    {"equalto", "other", IsCompared<Op::kEq>},
    {"escaped", "", IsType<>},  // no string is marked as HTML
    {"even", "", HasParity<0>},
    {"false", "", IsBoolean<false>},
    {"filter", "", IsName<IsFilter>},
    {"float", "", IsType<Type::kFloat>},
    {"ge", "other", IsCompared<Op::kGe>},
    {"greaterthan", "other", IsCompared<Op::kGt>},
    {"gt", "other", IsCompared<Op::kGt>},
    {"in", "seq", IsCompared<Op::kIn>},
    {"integer", "", IsType<Type::kInt>},
    // Undefined iterates as an empty list, so it counts as both.
    {"iterable", "", IsType<Type::kText, Type::kList, Type::kDict, Type::kLoop, Type::kUndefined>},
    {"le", "other", IsCompared<Op::kLe>},
    {"lessthan", "other", IsCompared<Op::kLt>},
    {"lower", "", IsOfCase<IsLowerText>},
    {"lt", "other", IsCompared<Op::kLt>},
    {"mapping", "", IsType<Type::kDict>},
    {"ne", "other", IsCompared<Op::kNe>},
    {"none", "", IsType<Type::kNone>},
    {"number", "", IsType<Type::kInt, Type::kFloat, Type::kBool>},
    {"odd", "", HasParity<1>},
    {"sameas", "other", IsSame},
    {"sequence", "", IsType<Type::kText, Type::kList, Type::kDict, Type::kUndefined>},
    {"string", "", IsType<Type::kText>},
    {"test", "", IsName<IsTest>},
    {"true", "", IsBoolean<true>},
    {"undefined", "", IsType<Type::kUndefined>},
    {"upper", "", IsOfCase<IsUpperText>},
};

}  // namespace

bool IsTest(std::string_view name) {
  return std::ranges::find(kTests, name, &Builtin::name) != std::end(kTests);
}

bool CallTest(Heap& heap, std::string_view name, Value input, const Args& args) {
  if (!IsTest(name)) {
    heap.Fail("no test '", name, "'");
    return false;
  }
  return Truthy(CallBuiltin(heap, kTests, name, input, args));
}

}  // namespace flotilla::jinja
