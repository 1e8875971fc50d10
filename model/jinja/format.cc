#include "model/jinja/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "model/text/utf8.h"

namespace flotilla::jinja {
namespace {

std::string SignOf(bool negative, const FormatSpec& spec) {
  return negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
}

// The digits with `separator` between groups of `size`.
std::string Grouped(const std::string& digits, char separator, size_t size) {
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % size == 0) out += separator;
    out += digits[i];
  }
  return out;
}

// printf with a format that this file makes.
std::string Printed(const char* format, int precision, double value) {
  const int size = std::snprintf(nullptr, 0, format, precision, value);
  std::string out(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(out.data(), out.size(), format, precision, value);
  out.pop_back();
  return out;
}

// A float without a type: as short as its precision, but with a digit after the point.
std::string PrintedPlain(double value, int precision, bool alternate) {
  const std::string scientific = Printed("%.*e", std::max(precision, 1) - 1, value);
  const int exponent = std::atoi(scientific.c_str() + scientific.find('e') + 1);
  if (exponent < -4 || exponent > precision - 2) {
    std::string out = Printed(alternate ? "%#.*e" : "%.*e", std::max(precision, 1) - 1, value);
    const size_t e = out.find('e');
    size_t end = e;
    if (!alternate && out.find('.') != std::string::npos) {
      while (out[end - 1] == '0') --end;
      if (out[end - 1] == '.') --end;
    }
    return out.erase(end, e - end);
  }
  std::string out = Printed(alternate ? "%#.*g" : "%.*g", precision, value);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

}  // namespace

int64_t ReadCount(Heap& heap, std::string_view text, size_t& at) {
  int64_t count = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    count = count * 10 + (text[at] - '0');
    if (count > kMostCharacters) {
      heap.Exhaust("steps");
      return 0;
    }
  }
  return count;
}

Text CharacterText(Heap& heap, Value value) {
  if (value.is(Type::kText) && CountCharacters(heap, *value.text) == 1) return *value.text;
  constexpr int64_t kEnd = 0x110000, kSurrogates = 0xd800, kAfterSurrogates = 0xe000;
  const int64_t c = value.is_integer() ? value.as_integer() : kEnd;
  std::string bytes;
  if (c < 0 || c >= kEnd || (c >= kSurrogates && c < kAfterSurrogates)) {
    heap.Fail("a character or its number is wanted, not '", TypeName(value), "'");
  } else {
    model::AppendUtf8(static_cast<uint32_t>(c), bytes);
  }
  return Text(bytes, false);
}

NumberText IntegerText(Heap& heap, int64_t value, const FormatSpec& spec) {
  NumberText out;
  out.sign = SignOf(value < 0, spec);
  const bool hex = spec.type == 'x' || spec.type == 'X';
  const uint64_t base = hex ? 16 : spec.type == 'o' ? 8 : spec.type == 'b' ? 2 : 10;
  if (spec.alternate && base != 10) out.sign += {'0', spec.type};
  const std::string_view letters = spec.type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
  uint64_t rest =
      value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  do {
    out.digits += letters[rest % base];
    rest /= base;
  } while (rest > 0);
  std::ranges::reverse(out.digits);
  const int64_t missing = spec.precision - static_cast<int64_t>(out.digits.size());
  if (missing > 0) {
    if (!heap.ChargeBytes(static_cast<uint64_t>(missing))) return {};
    out.digits.insert(0, static_cast<size_t>(missing), '0');
  }
  return out;
}

NumberText RealText(Heap& heap, double value, const FormatSpec& spec) {
  const bool upper = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
  std::string text;
  const double magnitude = std::fabs(value);
  if (!std::isfinite(value)) {
    text = std::isnan(value) ? (upper ? "NAN" : "nan") : upper ? "INF" : "inf";
  } else {
    // printf takes time in proportion to the digits, of which a binary place gives a third.
    const int64_t places = magnitude > 1 ? std::ilogb(magnitude) / 3 : 0;
    const int64_t digits = places + std::max<int64_t>(spec.precision, 0);
    if (!heap.Charge(static_cast<uint64_t>(digits) / 16)) return {};
    const int precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
    if (spec.type == '\0' && spec.precision < 0) {
      Text shortest;
      AppendRepr(heap, Value(magnitude), shortest);
      text = shortest.bytes();
    } else if (spec.type == '\0') {
      text = PrintedPlain(magnitude, std::max(precision, 1), spec.alternate);
    } else {
      const char type = spec.type == '%' ? 'f' : spec.type;
      const std::array<char, 6> format = {'%',
                                          spec.alternate ? '#' : '.',
                                          spec.alternate ? '.' : '*',
                                          spec.alternate ? '*' : type,
                                          spec.alternate ? type : '\0',
                                          '\0'};
      text = Printed(format.data(), precision, spec.type == '%' ? magnitude * 100 : magnitude);
    }
  }
  if (spec.type == '%') text += '%';
  NumberText out;
  out.sign = SignOf(std::signbit(value) && !std::isnan(value), spec);
  const size_t point = std::min(text.find_first_not_of("0123456789"), text.size());
  out.digits = text.substr(0, point);
  out.rest = text.substr(point);
  return out;
}

void AppendNumber(Heap& heap, NumberText number, const FormatSpec& spec, Text& out) {
  if (!heap.ok()) return;
  const bool decimal = spec.type != 'x' && spec.type != 'X' && spec.type != 'o' && spec.type != 'b';
  const size_t group = spec.grouping == '\0' ? 0 : decimal ? 3 : 4;
  const bool zeros = spec.zeros && spec.align == '\0';
  const int64_t outside = static_cast<int64_t>(number.sign.size() + number.rest.size());
  if (zeros || (spec.align == '=' && spec.fill.bytes() == "0")) {
    // As many zeros as fill the width. They are grouped, and a separator never comes first.
    int64_t digits = std::max<int64_t>(spec.width - outside, 0);
    if (group > 0) {
      const auto size = static_cast<int64_t>(group);
      digits -= std::max<int64_t>(digits - 1, 0) / (size + 1);
    }
    const int64_t missing = digits - static_cast<int64_t>(number.digits.size());
    if (missing > 0) {
      if (!heap.ChargeBytes(2 * static_cast<uint64_t>(missing))) return;
      number.digits.insert(0, static_cast<size_t>(missing), '0');
    }
  }
  if (group > 0) number.digits = Grouped(number.digits, spec.grouping, group);
  const std::string body = number.digits + number.rest;
  const int64_t missing = spec.width - static_cast<int64_t>(number.sign.size() + body.size());
  const char align = spec.align != '\0' ? spec.align : '>';
  const Text space(" ", false);
  const Text& fill = spec.fill.bytes().empty() ? space : spec.fill;
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  if (align == '=') out.Append(number.sign, false);
  AppendFill(heap, fill, left, out);
  if (align != '=') out.Append(number.sign, false);
  out.Append(body, false);
  AppendFill(heap, fill, missing - left, out);
}

void AppendFormatted(Heap& heap, const Text& text, const FormatSpec& spec, Text& out) {
  if (!heap.Charge(text.cost())) return;
  size_t end = text.bytes().size();
  if (spec.precision >= 0) {
    end = 0;
    for (int64_t i = 0; i < spec.precision && end < text.bytes().size(); ++i) {
      end += model::ReadUtf8(text.bytes(), end).bytes;
    }
  }
  Text shown;
  shown.Append(text, 0, end);
  const int64_t missing = spec.width - (spec.width > 0 ? CountCharacters(heap, shown) : 0);
  const Text space(" ", false);
  const Text& fill = spec.fill.bytes().empty() ? space : spec.fill;
  const int64_t left = spec.align == '>' ? missing : spec.align == '^' ? missing / 2 : 0;
  AppendFill(heap, fill, left, out);
  out.Append(shown);
  AppendFill(heap, fill, missing - left, out);
}

}  // namespace flotilla::jinja
