// Python's two ways to lay values out in a text. What a user wrote stays marked as such.
#pragma once

#include <string>

#include "model/jinja/builtins.h"
#include "model/jinja/value.h"

namespace flotilla::jinja {

// format % arguments, where `arguments` is a tuple, a dict for %(name)s, or the only argument.
// Fails for %a, and for arguments that are missing, left over or of another type.
Value FormatPercent(Heap& heap, const Text& format, Value arguments);

// str.format. Fails for the conversion !a, the type n and the sign z.
Value FormatBraces(Heap& heap, const Text& format, const Args& args);

// ---- For the implementation of both ----

// No text that the budget of a rendering allows is longer.
inline constexpr int64_t kMostCharacters = 1 << 26;

// How a value is laid out; the defaults are those of an empty specification.
struct FormatSpec {
  Text fill;          // one character; empty: a space
  char align = '\0';  // < > ^ =; none: as the type has it
  char sign = '-';    // - + or space
  bool alternate = false;
  bool zeros = false;    // fill with zeros after the sign
  char grouping = '\0';  // , or _
  int64_t width = 0;
  int64_t precision = -1;  // -1: not given
  char type = '\0';
};

// The digits of a number: those before the point, and the rest.
struct NumberText {
  std::string sign;    // and a prefix such as 0x
  std::string digits;  // before the point
  std::string rest;
};

// Both return an empty text after a failure. Types d x X o b, and e E f F g G and %.
NumberText IntegerText(Heap& heap, int64_t value, const FormatSpec& spec);
NumberText RealText(Heap& heap, double value, const FormatSpec& spec);
// Appends a number with its sign, groups and fill.
void AppendNumber(Heap& heap, NumberText number, const FormatSpec& spec, Text& out);
// Appends a text that is cut to the precision, with its fill.
void AppendFormatted(Heap& heap, const Text& text, const FormatSpec& spec, Text& out);

// The text of %c and {:c}: a character, or its number. Fails for anything else.
Text CharacterText(Heap& heap, Value value);

// Reads the decimal number at `at` and moves past it. 0 if there is none; fails if it is too large
// for any text.
int64_t ReadCount(Heap& heap, std::string_view text, size_t& at);

}  // namespace flotilla::jinja
