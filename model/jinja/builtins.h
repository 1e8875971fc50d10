// The filters, tests and methods of the template language. They are pure functions of
// their arguments; the heap records failures and costs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja/letter_case.h"
#include "model/jinja/value.h"

namespace flotilla::jinja {

// Arguments of a call, without the value that is filtered, tested or called on.
struct Args {
  std::span<const Value> positional;
  std::span<const std::pair<std::string_view, Value>> named;
};

bool IsFilter(std::string_view name);
bool IsTest(std::string_view name);
bool HasMethod(Value self, std::string_view name);
// True if Python's method of that name would change its value, which the sandbox forbids.
bool IsForbiddenMethod(Type type, std::string_view name);

// Each fails for an unknown name, and for arguments that it does not take.
Value CallFilter(Heap& heap, std::string_view name, Value input, const Args& args);
bool CallTest(Heap& heap, std::string_view name, Value input, const Args& args);
Value CallMethod(Heap& heap, Value self, std::string_view name, const Args& args);

// Return x.name and x[key]; undefined if x has no such attribute or key. Both fail on an
// undefined x.
Value GetAttribute(Heap& heap, Value object, std::string_view name);
Value GetItem(Heap& heap, Value object, Value key);

// ---- For the implementation of builtins ----

// Arguments matched to parameters.
class Bound {
 public:
  static constexpr size_t kMaxParams = 4;

  // Matches `args` to the space-separated names in `params`; a name with = may be left out. Fails
  // if there are more arguments, other names, or too few.
  Bound(Heap& heap, std::string_view callee, std::string_view params, const Args& args);

  bool has(size_t i) const { return given_[i]; }
  // The value of argument i; undefined if it was not given.
  Value operator[](size_t i) const { return values_[i]; }
  // The text of argument i, or the fallback; fails for another type.
  const Text& text(Heap& heap, size_t i, const Text& fallback) const;
  int64_t integer(Heap& heap, size_t i, int64_t fallback) const;
  bool truth(size_t i, bool fallback) const { return given_[i] ? Truthy(values_[i]) : fallback; }

 private:
  bool given_[kMaxParams] = {};
  Value values_[kMaxParams];
};

// A builtin: its name, the names of its parameters (as for Bound; "*" for a builtin that reads
// `args` itself) and its function.
struct Builtin {
  std::string_view name;
  std::string_view params;
  Value (*call)(Heap& heap, Value self, const Bound& bound, const Args& args);
};

// The rows of list_filters.cc, number_filters.cc and text_methods.cc.
std::span<const Builtin> ListFilters();
std::span<const Builtin> NumberFilters();
std::span<const Builtin> TextMethods();

// Calls the row of `table` named `name`. If there is none, records a failure and returns
// undefined.
Value CallBuiltin(Heap& heap, std::span<const Builtin> table, std::string_view name, Value self,
                  const Args& args);

// The input of a text filter: a string stays as it is, and another value becomes printed text.
Text AsText(Heap& heap, Value value);

// Finds item.a.0.b for the path "a.0.b". A path may also be an index, or none: the item itself.
class Getter {
 public:
  // Looks a string up as if its capital letters were small, if `fold_case`. Returns `fallback`, if
  // it is not none, for what is undefined.
  Getter(Heap& heap, Value path, bool fold_case = false, Value fallback = Value::None());
  Value operator()(Heap& heap, Value item) const;

 private:
  std::vector<Value> parts_;
  bool fold_case_;
  Value fallback_;
};

// Text operations that are both filters and methods.
Value Strip(Heap& heap, const Text& text, const Text* characters, bool left, bool right);
Value Replace(Heap& heap, const Text& text, const Text& from, const Text& to, int64_t count);
// Appends `count` copies of `fill`, or none if the count is negative.
void AppendFill(Heap& heap, const Text& fill, int64_t count, Text& out);
// str.center, ljust and rjust: the text between copies of `fill`, `width` characters wide.
enum class Align : uint8_t { kLeft, kCenter, kRight };
Value Aligned(Heap& heap, const Text& text, Align align, int64_t width, const Text& fill);
// How many characters a text has.
int64_t CountCharacters(Heap& heap, const Text& text);
// str.splitlines, with the line ends or without.
std::vector<Value> SplitLines(Heap& heap, const Text& text, bool keep_ends);
Value DictItems(Heap& heap, const Dict& dict);
Value Join(Heap& heap, const std::vector<Value>& items, const Text& separator);

}  // namespace flotilla::jinja
