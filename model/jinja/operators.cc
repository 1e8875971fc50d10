#include "model/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "model/jinja/format.h"

namespace flotilla::jinja {
namespace {

std::string_view Spelling(Op op) {
  constexpr std::string_view kSpellings[] = {"?",  "+",  "-", "*",  "/", "//", "%",  "**",
                                             "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kSpellings[static_cast<size_t>(op)];
}

Value BadOperands(Heap& heap, Op op, Value a, Value b) {
  return heap.Fail("unsupported operand types for ", Spelling(op), ": '", TypeName(a), "' and '",
                   TypeName(b), "'");
}

Value FloorDivide(Heap& heap, Op op, int64_t a, int64_t b) {
  if (b == 0) return heap.Fail("integer division or modulo by zero");
  if (b == -1) {  // the one quotient that can overflow
    if (op == Op::kMod) return Value(int64_t{0});
    int64_t negated;
    if (__builtin_sub_overflow(int64_t{0}, a, &negated)) return heap.Fail("integer overflow");
    return Value(negated);
  }
  const int64_t remainder = a % b;
  const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
  return op == Op::kMod ? Value(adjust ? remainder + b : remainder)
                        : Value(a / b - (adjust ? 1 : 0));
}

Value IntegerPower(Heap& heap, int64_t base, int64_t exponent) {
  if (exponent < 0 && base == 0) {
    return heap.Fail("0.0 cannot be raised to a negative power");
  }
  if (exponent < 0) {
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (base == 0 || base == 1) return Value(base);
    if (base == -1) return Value(exponent % 2 == 0 ? int64_t{1} : int64_t{-1});
    if (__builtin_mul_overflow(result, base, &result)) return heap.Fail("integer overflow");
  }
  return Value(result);
}

Value IntegerArithmetic(Heap& heap, Op op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Op::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Op::kSub:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::kMul:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::kDiv:
      if (b == 0) return heap.Fail("division by zero");
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Op::kPow:
      return IntegerPower(heap, a, b);
    default:
      return FloorDivide(heap, op, a, b);
  }
  return overflow ? heap.Fail("integer overflow") : Value(result);
}

Value RealArithmetic(Heap& heap, Op op, double a, double b) {
  switch (op) {
    case Op::kAdd:
      return Value(a + b);
    case Op::kSub:
      return Value(a - b);
    case Op::kMul:
      return Value(a * b);
    case Op::kPow: {
      const double power = std::pow(a, b);
      const bool finite = std::isfinite(a) && std::isfinite(b);
      if (finite && !std::isfinite(power)) return heap.Fail("a power has no finite value");
      return Value(power);
    }
    default:
      break;
  }
  if (b == 0) return heap.Fail("division by zero");
  if (op == Op::kDiv) return Value(a / b);
  // As CPython's float_floor_div and float_rem, whose results are exact where a / b is not.
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    remainder += b;
    quotient -= 1;
  }
  if (op == Op::kMod) return Value(remainder != 0 ? remainder : std::copysign(0.0, b));
  if (quotient == 0) return Value(std::copysign(0.0, a / b));
  const double floor = std::floor(quotient);
  return Value(quotient - floor > 0.5 ? floor + 1 : floor);
}

// Returns a text or list, repeated `count` times.
Value Repeat(Heap& heap, Value sequence, int64_t count) {
  const bool text = sequence.is(Type::kText);
  const uint64_t size =
      std::max<uint64_t>(1, text ? sequence.text->bytes().size() : sequence.list->items.size());
  count = std::max<int64_t>(count, 0);
  constexpr uint64_t kMaxSize = 1 << 26;
  if (static_cast<uint64_t>(count) > kMaxSize / size) return heap.Exhaust("steps");
  // Making the value charges as much again.
  const uint64_t all = static_cast<uint64_t>(count);
  if (!heap.Charge(text ? sequence.text->cost() * all + size * all / 64 : size * all / 4))
    return {};
  if (text) {
    Text repeated;
    if (count > 0) repeated = *sequence.text;
    // What is there is doubled, since a text may be one byte.
    for (int64_t made = 1; made < count;) {
      const Text part = repeated;
      const int64_t more = std::min(made, count - made);
      repeated.Append(part, 0, sequence.text->bytes().size() * static_cast<size_t>(more));
      made += more;
    }
    return heap.NewText(std::move(repeated));
  }
  std::vector<Value> items;
  for (int64_t i = 0; i < count; ++i) {
    items.insert(items.end(), sequence.list->items.begin(), sequence.list->items.end());
  }
  return heap.NewList(std::move(items), sequence.list->tuple);
}

bool Contains(Heap& heap, Value container, Value item) {
  switch (container.type) {
    case Type::kText:
      if (!item.is(Type::kText)) {
        heap.Fail("'in <string>' requires string as left operand, not ", TypeName(item));
        return false;
      }
      return heap.ChargeBytes(container.text->bytes().size()) &&
             FindText(container.text->bytes(), item.text->bytes()) != std::string::npos;
    case Type::kList:
      return std::ranges::any_of(container.list->items,
                                 [&](Value each) { return Equal(heap, each, item); });
    case Type::kDict:
      if (!IsHashable(item)) heap.Fail("unhashable type: '", TypeName(item), "'");
      return container.dict->Find(heap, item) != nullptr;
    case Type::kUndefined:
      return false;
    default:
      heap.Fail("argument of type '", TypeName(container), "' is not iterable");
      return false;
  }
}

}  // namespace

Value Arithmetic(Heap& heap, Op op, Value a, Value b) {
  if (a.is_integer() && b.is_integer()) {
    return IntegerArithmetic(heap, op, a.as_integer(), b.as_integer());
  }
  if (a.is_number() && b.is_number()) return RealArithmetic(heap, op, a.as_real(), b.as_real());
  if (op == Op::kMod && a.is(Type::kText)) return FormatPercent(heap, *a.text, b);
  if (op == Op::kAdd && a.is(Type::kText) && b.is(Type::kText)) {
    if (!heap.Charge(1 + a.text->cost())) return {};
    Text sum = *a.text;
    sum.Append(*b.text);
    return heap.NewText(std::move(sum));
  }
  if (op == Op::kAdd && a.is(Type::kList) && b.is(Type::kList) && a.list->tuple == b.list->tuple) {
    std::vector<Value> sum = a.list->items;
    sum.insert(sum.end(), b.list->items.begin(), b.list->items.end());
    return heap.NewList(std::move(sum), a.list->tuple);
  }
  if (op == Op::kMul && b.is_integer() && (a.is(Type::kText) || a.is(Type::kList))) {
    return Repeat(heap, a, b.as_integer());
  }
  if (op == Op::kMul && a.is_integer() && (b.is(Type::kText) || b.is(Type::kList))) {
    return Repeat(heap, b, a.as_integer());
  }
  return BadOperands(heap, op, a, b);
}

bool Compare(Heap& heap, Op op, Value a, Value b) {
  switch (op) {
    case Op::kEq:
      return Equal(heap, a, b);
    case Op::kNe:
      return !Equal(heap, a, b);
    case Op::kLt:
      return Less(heap, a, b);
    case Op::kGt:
      return Less(heap, b, a);
    case Op::kLe:
      return Less(heap, a, b) || Equal(heap, a, b);
    case Op::kGe:
      return Less(heap, b, a) || Equal(heap, a, b);
    case Op::kIn:
      return Contains(heap, b, a);
    case Op::kNotIn:
      return !Contains(heap, b, a);
    default:
      return false;
  }
}

Value Slice(Heap& heap, Value object, Value start, Value stop, Value step) {
  const bool text = object.is(Type::kText);
  if (object.is(Type::kUndefined)) return heap.Fail("a slice of an undefined value");
  if (!text && !object.is(Type::kList)) {
    return heap.Fail("'", TypeName(object), "' object cannot be sliced");
  }
  const auto absent = [](Value v) { return v.is(Type::kUndefined) || v.is(Type::kNone); };
  for (const Value bound : {start, stop, step}) {
    if (!absent(bound) && !bound.is_integer()) return heap.Fail("slice indices must be integers");
  }
  std::vector<size_t> offsets;  // of characters
  if (text) {
    if (!heap.Charge(object.text->bytes().size() / 8)) return {};
    offsets = CharacterOffsets(object.text->bytes());
  }
  const auto size = static_cast<int64_t>(text ? offsets.size() - 1 : object.list->items.size());
  // No step reaches further than the size, so clamping changes nothing and keeps sums in range.
  const int64_t by = absent(step) ? 1 : std::clamp<int64_t>(step.as_integer(), -size - 1, size + 1);
  if (!absent(step) && step.as_integer() == 0) return heap.Fail("slice step cannot be zero");
  const auto resolve = [&](Value bound, int64_t fallback) {
    if (absent(bound)) return fallback;
    const int64_t low = by > 0 ? 0 : -1;
    int64_t at = bound.as_integer();
    if (at < 0) at = at < -size ? low : at + size;
    return std::clamp(at, low, by > 0 ? size : size - 1);
  };
  const int64_t from = resolve(start, by > 0 ? 0 : size - 1);
  const int64_t to = resolve(stop, by > 0 ? size : -1);
  Text part;
  std::vector<Value> items;
  if (text && by == 1) {
    if (from < to) part.Append(*object.text, offsets[from], offsets[to]);
    return heap.NewText(std::move(part));
  }
  for (int64_t i = from; by > 0 ? i < to : i > to; i += by) {
    if (text) {
      part.Append(*object.text, offsets[i], offsets[i + 1]);
    } else {
      items.push_back(object.list->items[i]);
    }
  }
  return text ? heap.NewText(std::move(part)) : heap.NewList(std::move(items), object.list->tuple);
}

}  // namespace flotilla::jinja
