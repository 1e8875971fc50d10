// Values of a template program, and the heap that owns them for one rendering.
//
// A Value is a small handle that may be copied freely. The object to which it points lives
// as long as its Heap (or, for literals, the program). Everything but namespaces is
// immutable, so values form no cycles. The Heap also carries the rendering's budget and its
// first failure. An operation that fails records the failure, returns an undefined value and
// goes on harmlessly; loops stop when ok() turns false.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/types/text.h"

namespace flotilla::jinja {

// Lists nest at most this deep, which bounds the recursion over values.
inline constexpr int kMaxValueDepth = 100;

// A string that knows which of its bytes a user wrote.
class Text {
 public:
  struct Run {
    size_t end;  // offset after the run's last byte
    bool user;
  };

  Text() = default;
  Text(std::string_view text, bool user) { Append(text, user); }

  void Append(std::string_view text, bool user);
  void Append(const Text& other) { Append(other, 0, other.bytes_.size()); }
  void Append(const Text& other, size_t begin, size_t end);  // bytes [begin, end)

  const std::string& bytes() const { return bytes_; }
  const std::vector<Run>& runs() const { return runs_; }  // neighbours differ
  bool has_user_text() const;
  // The steps that making or reading it takes: one for 64 bytes, or for 4 runs.
  uint64_t cost() const { return bytes_.size() / 64 + runs_.size() / 4; }

  // Returns the text with each byte b replaced by map(b, position); length and runs stay.
  template <typename Map>
  Text Mapped(Map map) const {
    Text out = *this;
    for (size_t i = 0; i < out.bytes_.size(); ++i) out.bytes_[i] = map(out.bytes_[i], i);
    return out;
  }

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

class Heap;
struct List;
struct Dict;
struct Namespace;
struct Callable;
struct Cycler;
struct Loop;

enum class Type : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,
  kList,  // tuples too: List::tuple
  kDict,
  kNamespace,
  kCallable,
  kCycler,
  kLoop,
};

struct Value {
  Type type = Type::kUndefined;
  union {
    bool boolean;
    int64_t integer = 0;
    double real;
    const Text* text;
    const List* list;
    const Dict* dict;
    Namespace* space;
    const Callable* callable;
    Cycler* cycler;
    const Loop* loop;
  };

  Value() = default;
  explicit Value(bool v) : type(Type::kBool), boolean(v) {}
  explicit Value(int64_t v) : type(Type::kInt), integer(v) {}
  explicit Value(double v) : type(Type::kFloat), real(v) {}
  explicit Value(const Text* v) : type(Type::kText), text(v) {}
  explicit Value(const List* v) : type(Type::kList), list(v) {}
  explicit Value(const Dict* v) : type(Type::kDict), dict(v) {}
  explicit Value(Namespace* v) : type(Type::kNamespace), space(v) {}
  explicit Value(const Callable* v) : type(Type::kCallable), callable(v) {}
  explicit Value(Cycler* v) : type(Type::kCycler), cycler(v) {}
  explicit Value(const Loop* v) : type(Type::kLoop), loop(v) {}

  static Value None() {
    Value value;
    value.type = Type::kNone;
    return value;
  }

  bool is(Type t) const { return type == t; }
  bool is_integer() const { return type == Type::kInt || type == Type::kBool; }
  bool is_number() const { return is_integer() || type == Type::kFloat; }
  int64_t as_integer() const { return type == Type::kBool ? boolean : integer; }
  double as_real() const { return type == Type::kFloat ? real : static_cast<double>(as_integer()); }
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  bool group = false;     // a pair of groupby, whose items are also .grouper and .list
  bool hashable = false;  // a tuple whose items are, too
  int depth = 1;          // 1 + that of the deepest item
};

// A dict in insertion order.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  absl::flat_hash_map<std::string, size_t> index;  // key's identity -> items
  int depth = 1;

  // Null if absent or not a possible key.
  const Value* Find(Heap& heap, Value key) const;
  const Value* Find(Heap& heap, std::string_view key) const;
  // Replaces or appends the value of `key`. Returns false if `key` cannot be a key.
  bool Set(Heap& heap, Value key, Value value);
};

// The names are those of the program, or texts of the heap.
struct Namespace {
  absl::flat_hash_map<std::string_view, Value, TextHash, TextEqual> attributes;
};

struct Scope;
struct Stmt;

// Something that can be called: a macro, a global function, or a method bound
// to its value.
struct Callable {
  enum class Kind : uint8_t { kMacro, kGlobal, kMethod, kJoiner };
  Kind kind;
  std::string_view name;  // of a global or method
  Value self;             // of a method; the separator of a joiner
  const Stmt* macro = nullptr;
  Scope* scope = nullptr;       // in which the macro was defined
  mutable bool called = false;  // of a joiner
};

// What cycler(...) returns: it goes through its items, of which there is one at least, in turn.
struct Cycler {
  std::vector<Value> items;
  size_t at = 0;
};

// The value of the variable `loop` inside a for.
struct Loop {
  const std::vector<Value>* items = nullptr;
  size_t index0 = 0;
  int64_t depth0 = 0;  // how many calls of loop(...) it is inside of
  const Stmt* stmt = nullptr;
  Scope* scope = nullptr;       // that of the statement, for loop(...)
  mutable Value changed;        // what loop.changed(...) was called with last
  mutable bool called = false;  // loop.changed
};

class Heap {
 public:
  explicit Heap(uint64_t max_steps) : steps_left_(max_steps) {}

  uint64_t steps_left() const { return steps_left_; }
  void set_steps_left(uint64_t steps) { steps_left_ = steps; }

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

  // Takes steps off the budget. Once the budget is spent, records a failure and returns false.
  bool Charge(uint64_t steps);
  // As Charge of what reading so many bytes takes.
  bool ChargeBytes(uint64_t bytes) { return Charge(bytes / 64); }

  // Records the first failure, with the line being executed. Always returns undefined.
  template <typename... Parts>
  Value Fail(const Parts&... parts) {
    if (ok()) status_ = InvalidArgument("template line ", line_, ": ", Cat(parts...));
    return {};
  }
  // As Fail, but the status has only `message`, without a line. For raise_exception.
  Value Raise(std::string_view message);
  Value Exhaust(std::string_view what);

  void set_line(uint32_t line) { line_ = line; }
  uint32_t line() const { return line_; }

  Value NewText(Text text);
  Value NewText(std::string_view text, bool user = false) { return NewText(Text(text, user)); }
  Value NewList(std::vector<Value> items, bool tuple = false, bool group = false);
  Value NewDict(Dict dict);
  Value NewNamespace() { return Value(&spaces_.emplace_back()); }
  Value NewCycler(std::vector<Value> items) {
    return Charge(1 + items.size()) ? Value(&cyclers_.emplace_back(Cycler{std::move(items)}))
                                    : Value();
  }
  Value NewCallable(Callable callable) {
    return Charge(1) ? Value(static_cast<const Callable*>(&callables_.emplace_back(callable)))
                     : Value();
  }

 private:
  uint64_t steps_left_;
  uint32_t line_ = 1;
  absl::Status status_;
  std::deque<Text> texts_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Namespace> spaces_;
  std::deque<Callable> callables_;
  std::deque<Cycler> cyclers_;
};

// Python's name of the type, for messages.
std::string_view TypeName(Value value);

bool Truthy(Value value);

// True if the value can be a key of a dict: it is no dict or list, and neither are its items.
bool IsHashable(Value value);

// Python's ==, and < for numbers, texts and lists; Less fails for other types.
bool Equal(Heap& heap, Value a, Value b);
bool Less(Heap& heap, Value a, Value b);

// Appends str(value), or repr(value).
void AppendStr(Heap& heap, Value value, Text& out);
void AppendRepr(Heap& heap, Value value, Text& out);

// Returns what iteration over `value` gives: items, keys or characters; nothing for
// undefined. Fails for a value that cannot be iterated.
std::vector<Value> Items(Heap& heap, Value value);

// The first place of `wanted` from `begin` on, or npos. It takes time in proportion to the sizes,
// which the caller charges.
size_t FindText(std::string_view text, std::string_view wanted, size_t begin = 0);

// Returns the characters of `text` (code points), as the offsets of their first bytes,
// followed by the end.
std::vector<size_t> CharacterOffsets(std::string_view text);

// A JSON value as the program sees it; its texts are marked as a user's.
Value FromJson(Heap& heap, const nlohmann::ordered_json& json, int depth = 0);

struct JsonStyle {
  int indent = -1;  // spaces per level; -1: on one line
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// Appends Python's json.dumps(value).
void AppendJson(Heap& heap, Value value, const JsonStyle& style, Text& out, int level = 0);

}  // namespace flotilla::jinja
