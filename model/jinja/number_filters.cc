// The filters of the template language that make or take numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "model/jinja/builtins.h"
#include "model/jinja/operators.h"

namespace flotilla::jinja {
namespace {

// The integer that all of `text` spells, as Python's int(text, base).
bool ReadInteger(std::string_view text, int64_t base, Value& out) {
  std::string digits;
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  constexpr std::pair<std::string_view, int> kPrefixes[] = {{"xX", 16}, {"oO", 8}, {"bB", 2}};
  bool prefixed = false;
  for (const auto& [letters, of] : kPrefixes) {
    if (text.size() < 3 || text[0] != '0' || letters.find(text[1]) == std::string_view::npos ||
        (base != of && base != 0)) {
      continue;
    }
    base = of;
    text.remove_prefix(2);
    prefixed = true;
  }
  if (text.starts_with('_') && !prefixed) return false;
  if (base == 0) {
    if (text.starts_with('0') && text.find_first_not_of("0_") != std::string_view::npos) {
      return false;
    }
    base = 10;
  }
  if (base < 2 || base > 36) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits += text[i];
    } else if (i + 1 == text.size() || text[i + 1] == '_') {
      return false;
    }
  }
  if (digits.starts_with('-')) return false;
  if (negative) digits.insert(0, 1, '-');
  int64_t integer = 0;
  const char* end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, integer, static_cast<int>(base));
  if (parsed.ec != std::errc() || parsed.ptr != end) return false;
  out = Value(integer);
  return true;
}

// As Python's float(text).
bool ReadReal(std::string_view text, double& out) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](size_t at) {
      return at < text.size() && text[at] >= '0' && text[at] <= '9';
    };
    if (text[i] != '_') {
      plain += text[i];
    } else if (i == 0 || !digit(i - 1) || !digit(i + 1)) {
      return false;
    }
  }
  const char* end = plain.data() + plain.size();
  const auto parsed = std::from_chars(plain.data(), end, out);
  if (parsed.ptr != end || plain.find('(') != std::string::npos) return false;
  if (parsed.ec == std::errc()) return true;
  if (parsed.ec != std::errc::result_out_of_range) return false;
  out = std::strtod(plain.c_str(), nullptr);  // infinity or zero
  return true;
}

// The text without white space at its ends; undefined if the heap fails.
Value Stripped(Heap& heap, const Text& text) { return Strip(heap, text, nullptr, true, true); }

Value ToInt(Heap& heap, Value input, const Bound& bound, const Args&) {
  const Value fallback = bound.has(0) ? bound[0] : Value(int64_t{0});
  if (input.is(Type::kUndefined)) return heap.Fail("int of an undefined value");
  if (input.is_integer()) return Value(input.as_integer());
  double real = 0;
  if (input.is(Type::kFloat)) {
    real = input.real;
  } else if (input.is(Type::kText)) {
    const Value stripped = Stripped(heap, *input.text);
    if (!heap.ok()) return {};
    const std::string& text = stripped.text->bytes();
    Value integer;
    const bool has_base = !bound.has(1) || bound[1].is_integer();
    if (has_base && ReadInteger(text, bound.integer(heap, 1, 10), integer)) return integer;
    if (!ReadReal(text, real)) return fallback;
  } else {
    return fallback;
  }
  if (!std::isfinite(real)) return fallback;
  return std::fabs(real) < 0x1p63 ? Value(static_cast<int64_t>(real))
                                  : heap.Fail("integer overflow");
}

Value ToFloat(Heap& heap, Value input, const Bound& bound, const Args&) {
  const Value fallback = bound.has(0) ? bound[0] : Value(0.0);
  if (input.is(Type::kUndefined)) return heap.Fail("float of an undefined value");
  if (input.is_number()) return Value(input.as_real());
  if (!input.is(Type::kText)) return fallback;
  const Value stripped = Stripped(heap, *input.text);
  if (!heap.ok()) return {};
  double real = 0;
  return ReadReal(stripped.text->bytes(), real) ? Value(real) : fallback;
}

Value Abs(Heap& heap, Value input, const Bound&, const Args&) {
  if (input.is(Type::kFloat)) return Value(std::fabs(input.real));
  if (!input.is_integer()) return heap.Fail("abs of a '", TypeName(input), "'");
  if (input.as_integer() == INT64_MIN) return heap.Fail("integer overflow");
  return Value(std::abs(input.as_integer()));
}

// round(value, precision) of an integer: it changes only if the precision is negative.
Value RoundedInteger(Heap& heap, int64_t value, int64_t precision) {
  if (precision >= 0) return Value(value);
  constexpr int64_t kMostDigits = 19;  // of 64 bits
  if (precision < -kMostDigits) return Value(int64_t{0});
  __int128 unit = 1;
  for (int64_t i = 0; i < -precision; ++i) unit *= 10;
  const __int128 wide = value;
  __int128 below = wide / unit * unit;
  if (below > wide) below -= unit;
  const __int128 rest = 2 * (wide - below);
  const bool up = rest > unit || (rest == unit && below / unit % 2 != 0);  // ties go to even
  const __int128 rounded = up ? below + unit : below;
  if (rounded > INT64_MAX || rounded < INT64_MIN) return heap.Fail("integer overflow");
  return Value(static_cast<int64_t>(rounded));
}

// Python's round(value, precision): the decimal that is nearest to the number's exact value.
Value RoundedReal(Heap& heap, double value, int64_t precision) {
  constexpr int64_t kMost = 323, kLeast = -308;  // CPython's NDIGITS_MAX and NDIGITS_MIN
  if (!std::isfinite(value) || precision > kMost) return Value(value);
  if (precision < kLeast) return Value(0.0 * value);
  char buffer[700];  // 309 digits, a point and 323 digits
  std::to_chars_result end{};
  if (precision >= 0) {
    end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed,
                        static_cast<int>(precision));
  } else {
    // As many digits as are left of the place that is rounded to.
    const int exponent =
        value == 0 ? 0 : static_cast<int>(std::floor(std::log10(std::fabs(value))));
    const auto digits = static_cast<int>(exponent + precision);
    if (digits < 0) {
      const double unit = std::pow(10.0, static_cast<double>(-precision));
      return Value(std::copysign(std::fabs(value) > unit / 2 ? unit : 0.0, value));
    }
    end =
        std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific, digits);
  }
  double rounded = 0;
  std::from_chars(buffer, end.ptr, rounded);
  return std::isfinite(rounded) ? Value(rounded)
                                : heap.Fail("rounded value too large to represent");
}

Value Round(Heap& heap, Value input, const Bound& bound, const Args&) {
  const int64_t precision = bound.integer(heap, 0, 0);
  const Text common("common", false);
  const std::string& method = bound.text(heap, 1, common).bytes();
  if (!input.is_number()) return heap.Fail("round of a '", TypeName(input), "'");
  if (method == "common") {
    return input.is_integer() ? RoundedInteger(heap, input.as_integer(), precision)
                              : RoundedReal(heap, input.real, precision);
  }
  if (method != "ceil" && method != "floor") {
    return heap.Fail("round method must be common, ceil or floor, not '", method, "'");
  }
  const Value unit = Arithmetic(heap, Op::kPow, Value(int64_t{10}), Value(precision));
  const double scaled = Arithmetic(heap, Op::kMul, input, unit).as_real();
  if (!std::isfinite(scaled)) return heap.Fail("cannot convert float infinity or NaN to integer");
  const Value whole((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) + 0.0);  // not -0.0
  return Arithmetic(heap, Op::kDiv, whole, unit);
}

constexpr Builtin kNumberFilters[] = {
    {"abs", "", Abs},
    {"float", "default=", ToFloat},
    {"int", "default= base=", ToInt},
    {"round", "precision= method=", Round},
};

}  // namespace

std::span<const Builtin> NumberFilters() { return kNumberFilters; }

}  // namespace flotilla::jinja
