#include "model/jinja/interpreter.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>

#include "model/jinja/builtins.h"
#include "model/jinja/operators.h"

namespace flotilla::jinja {

// Variables of the template, of a loop's body or of one macro call.
struct Scope {
  Scope* parent = nullptr;
  absl::flat_hash_map<std::string_view, Value, TextHash, TextEqual> variables;
};

namespace {

// The most frames of interpreter recursion: the nesting of the program times that of macro
// calls. A frame takes about 1 KB of stack.
constexpr int kMaxFrames = 700;
constexpr int64_t kMaxRange = 100'000;

constexpr std::string_view kGlobals[] = {"range",  "namespace",       "dict",
                                         "joiner", "raise_exception", "strftime_now"};

class Interpreter {
 public:
  Interpreter(Heap& heap, const RunOptions& options) : heap_(heap), options_(options) {}

  absl::StatusOr<Text> RunAll(const Template& program,
                              const std::vector<std::pair<std::string, Value>>& variables) {
    Scope* scope = NewScope(nullptr);
    for (const auto& [name, value] : variables) scope->variables[name] = value;
    Text out;
    Exec(program.body, scope, out);
    if (!heap_.ok()) return heap_.status();
    return out;
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Counts one frame of recursion while alive.
  class Frame {
   public:
    explicit Frame(Interpreter* interpreter) : interpreter_(interpreter) {
      if (++interpreter_->frames_ > kMaxFrames) interpreter_->heap_.Exhaust("recursion");
    }
    ~Frame() { --interpreter_->frames_; }

   private:
    Interpreter* interpreter_;
  };

  Scope* NewScope(Scope* parent) {
    heap_.Charge(4);
    scopes_.push_back({parent, {}});
    return &scopes_.back();
  }

  // ---- Statements ----

  Flow Exec(const Body& body, Scope* scope, Text& out) {
    const Frame frame(this);
    for (const auto& stmt : body) {
      heap_.set_line(stmt->line);
      if (!heap_.Charge(1)) return Flow::kBreak;
      const Flow flow = Exec(*stmt, scope, out);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow Exec(const Stmt& stmt, Scope* scope, Text& out) {
    switch (stmt.kind) {
      case Stmt::Kind::kText:
        Emit(stmt.text, out);
        return Flow::kNext;
      case Stmt::Kind::kPrint: {
        Text text;
        AppendStr(heap_, Eval(stmt.expr.get(), scope), text);
        Emit(text, out);
        return Flow::kNext;
      }
      case Stmt::Kind::kIf:
        for (const Stmt::Branch& branch : stmt.branches) {
          if (branch.condition == nullptr || Truthy(Eval(branch.condition.get(), scope))) {
            return heap_.ok() ? Exec(branch.body, scope, out) : Flow::kBreak;
          }
        }
        return Flow::kNext;
      case Stmt::Kind::kFor:
        ExecFor(stmt, scope, out);
        return Flow::kNext;
      case Stmt::Kind::kSet:
        Assign(stmt.target, Eval(stmt.expr.get(), scope), scope);
        return Flow::kNext;
      case Stmt::Kind::kSetBlock:
        Assign(stmt.target, Captured(stmt, scope), scope);
        return Flow::kNext;
      case Stmt::Kind::kFilter: {
        Text text;
        AppendStr(heap_, Captured(stmt, scope), text);
        Emit(text, out);
        return Flow::kNext;
      }
      case Stmt::Kind::kMacro: {
        const Callable macro{.kind = Callable::Kind::kMacro, .macro = &stmt, .scope = scope};
        scope->variables[stmt.name] = heap_.NewCallable(macro);
        return Flow::kNext;
      }
      case Stmt::Kind::kBreak:
        return Flow::kBreak;
      case Stmt::Kind::kContinue:
        return Flow::kContinue;
      case Stmt::Kind::kBlock:
        return Exec(stmt.body, scope, out);
    }
    return Flow::kNext;
  }

  void Emit(const Text& text, Text& out) {
    if (!heap_.Charge(text.cost())) return;
    if (out.bytes().size() + text.bytes().size() > options_.max_output_bytes) {
      heap_.Exhaust("output bytes");
      return;
    }
    out.Append(text);
  }

  // Returns what the statement's body prints, passed through the statement's filter.
  Value Captured(const Stmt& stmt, Scope* scope) {
    Text text;
    Exec(stmt.body, scope, text);
    const Value value = heap_.NewText(std::move(text));
    return stmt.expr == nullptr ? value : EvalWithInput(*stmt.expr, scope, value);
  }

  void Assign(const Target& target, Value value, Scope* scope) {
    if (!target.attribute.empty()) {
      const Value object = LookUp(target.names[0], scope);
      if (!object.is(Type::kNamespace)) {
        heap_.Fail("cannot assign attribute on non-namespace object");
        return;
      }
      if (heap_.ChargeBytes(target.attribute.size())) {
        object.space->attributes[target.attribute] = value;
      }
    } else if (!target.unpack) {
      if (!heap_.ChargeBytes(target.names[0].size())) return;
      scope->variables[target.names[0]] = value;
    } else {
      const std::vector<Value> items = Items(heap_, value);
      if (items.size() != target.names.size()) {
        heap_.Fail("cannot unpack ", items.size(), " values into ", target.names.size(), " names");
        return;
      }
      for (size_t i = 0; i < items.size(); ++i) {
        if (!heap_.Charge(1 + target.names[i].size() / 64)) return;
        scope->variables[target.names[i]] = items[i];
      }
    }
  }

  void ExecFor(const Stmt& stmt, Scope* scope, Text& out) {
    std::vector<Value> items = Items(heap_, Eval(stmt.expr.get(), scope));
    Scope* body = NewScope(scope);
    if (stmt.condition != nullptr) {
      std::vector<Value> kept;
      for (const Value item : items) {
        Assign(stmt.target, item, body);
        if (!heap_.ok()) return;
        if (Truthy(Eval(stmt.condition.get(), body))) kept.push_back(item);
      }
      items = std::move(kept);
    }
    if (items.empty() && heap_.ok()) {
      Exec(stmt.else_body, scope, out);
      return;
    }
    loops_.push_back({&items, 0});
    Loop& loop = loops_.back();
    for (size_t i = 0; i < items.size() && heap_.ok(); ++i) {
      loop.index0 = i;
      body->variables.clear();  // assignments do not outlive an iteration
      body->variables["loop"] = Value(static_cast<const Loop*>(&loop));
      Assign(stmt.target, items[i], body);
      if (Exec(stmt.body, body, out) == Flow::kBreak) break;
    }
    loop.items = nullptr;
  }

  // ---- Expressions ----

  Value LookUp(std::string_view name, const Scope* scope) {
    uint64_t walked = 0;
    for (; scope != nullptr; scope = scope->parent) {
      // Four scopes take as long as a step.
      if (++walked % 4 == 0 || name.size() >= 64) heap_.Charge(1 + name.size() / 64);
      if (!heap_.ok()) return {};
      const auto it = scope->variables.find(name);
      if (it != scope->variables.end()) return it->second;
    }
    const auto* global = std::ranges::find(kGlobals, name);
    if (global == std::end(kGlobals)) return {};
    return heap_.NewCallable({.kind = Callable::Kind::kGlobal, .name = *global});
  }

  Value Eval(const Expr* expr, Scope* scope) {
    const Frame frame(this);
    if (expr == nullptr || !heap_.Charge(1)) return {};
    const auto arg = [&](size_t i) { return Eval(expr->args[i].get(), scope); };
    switch (expr->kind) {
      case Expr::Kind::kLiteral:
        return expr->value;
      case Expr::Kind::kName:
        return LookUp(expr->name, scope);
      case Expr::Kind::kList:
      case Expr::Kind::kTuple:
        return heap_.NewList(EvalAll(*expr, 0, scope), expr->kind == Expr::Kind::kTuple);
      case Expr::Kind::kDict:
        return EvalDict(*expr, scope);
      case Expr::Kind::kAttribute:
      case Expr::Kind::kSubscript:
        return EvalMember(*expr, scope);
      case Expr::Kind::kSlice:
        return Slice(heap_, arg(0), arg(1), arg(2), arg(3));
      case Expr::Kind::kCall:
        return EvalCall(*expr, scope);
      case Expr::Kind::kFilter:
      case Expr::Kind::kTest:
        return EvalWithInput(*expr, scope, arg(0));
      case Expr::Kind::kNot:
        return Value(!Truthy(arg(0)));
      case Expr::Kind::kNegate:
        return Arithmetic(heap_, Op::kSub, Value(int64_t{0}), arg(0));
      case Expr::Kind::kPositive:
        return Arithmetic(heap_, Op::kAdd, Value(int64_t{0}), arg(0));
      case Expr::Kind::kBinary: {
        const Value left = arg(0);
        return Arithmetic(heap_, expr->op, left, arg(1));
      }
      case Expr::Kind::kAnd: {
        const Value left = arg(0);
        return Truthy(left) ? arg(1) : left;
      }
      case Expr::Kind::kOr: {
        const Value left = arg(0);
        return Truthy(left) ? left : arg(1);
      }
      case Expr::Kind::kCompare:
        return EvalCompare(*expr, scope);
      case Expr::Kind::kConcat: {
        Text text;
        for (const Value item : EvalAll(*expr, 0, scope)) AppendStr(heap_, item, text);
        return heap_.NewText(std::move(text));
      }
      case Expr::Kind::kIf:
        return Truthy(arg(1)) ? arg(0) : arg(2);
    }
    return {};
  }

  std::vector<Value> EvalAll(const Expr& expr, size_t from, Scope* scope) {
    std::vector<Value> values;
    for (size_t i = from; i < expr.args.size(); ++i) {
      values.push_back(Eval(expr.args[i].get(), scope));
    }
    return values;
  }

  Value EvalDict(const Expr& expr, Scope* scope) {
    Dict dict;
    for (size_t i = 0; i + 1 < expr.args.size(); i += 2) {
      const Value key = Eval(expr.args[i].get(), scope);
      if (!dict.Set(heap_, key, Eval(expr.args[i + 1].get(), scope))) {
        return heap_.Fail("a dict key of type '", TypeName(key), "'");
      }
    }
    return heap_.NewDict(std::move(dict));
  }

  Value EvalMember(const Expr& expr, Scope* scope) {
    const Value object = Eval(expr.args[0].get(), scope);
    if (object.is(Type::kUndefined)) {
      const Expr& owner = *expr.args[0];
      return heap_.Fail("'", owner.name.empty() ? "value" : owner.name, "' is undefined");
    }
    heap_.set_line(expr.line);
    if (expr.kind == Expr::Kind::kAttribute) return GetAttribute(heap_, object, expr.name);
    return GetItem(heap_, object, Eval(expr.args[1].get(), scope));
  }

  Value EvalCompare(const Expr& expr, Scope* scope) {
    Value left = Eval(expr.args[0].get(), scope);
    for (size_t i = 0; i < expr.ops.size(); ++i) {
      const Value right = Eval(expr.args[i + 1].get(), scope);
      if (!Compare(heap_, expr.ops[i], left, right)) return Value(false);
      left = right;
    }
    return Value(true);
  }

  // The evaluated arguments of a call, filter or test, from expr.args[1] on.
  struct EvaluatedArgs {
    std::vector<Value> positional;
    std::vector<std::pair<std::string_view, Value>> named;
    Args args() const { return {positional, named}; }
  };

  EvaluatedArgs EvalArgs(const Expr& expr, Scope* scope) {
    EvaluatedArgs out{EvalAll(expr, 1, scope), {}};
    for (const auto& [name, value] : expr.named) {
      out.named.emplace_back(name, Eval(value.get(), scope));
    }
    heap_.set_line(expr.line);
    return out;
  }

  // Applies a filter or test to `input`. In a filter block the innermost filter of a chain has
  // no operand of its own; its input is the block's text.
  Value EvalWithInput(const Expr& expr, Scope* scope, Value input) {
    if (expr.args[0] != nullptr && expr.args[0]->kind == Expr::Kind::kFilter &&
        IsHeadless(*expr.args[0])) {
      input = EvalWithInput(*expr.args[0], scope, input);
    }
    const EvaluatedArgs given = EvalArgs(expr, scope);
    if (!heap_.ok()) return {};
    if (expr.kind == Expr::Kind::kTest) {
      return Value(CallTest(heap_, expr.name, input, given.args()));
    }
    return CallFilter(heap_, expr.name, input, given.args());
  }

  static bool IsHeadless(const Expr& expr) {
    const Expr* e = &expr;
    while (e->kind == Expr::Kind::kFilter && e->args[0] != nullptr) e = e->args[0].get();
    return e->kind == Expr::Kind::kFilter;
  }

  Value EvalCall(const Expr& expr, Scope* scope) {
    const Value callee = Eval(expr.args[0].get(), scope);
    const EvaluatedArgs given = EvalArgs(expr, scope);
    if (!heap_.ok()) return {};
    if (!callee.is(Type::kCallable)) {
      const std::string& name = expr.args[0]->name;
      return heap_.Fail("'", name.empty() ? "value" : name, "' of type ", TypeName(callee),
                        " is not callable");
    }
    const Callable& target = *callee.callable;
    switch (target.kind) {
      case Callable::Kind::kMacro:
        return CallMacro(target, given);
      case Callable::Kind::kGlobal:
        return CallGlobal(target.name, given);
      case Callable::Kind::kMethod:
        return CallMethod(heap_, target.self, target.name, given.args());
      case Callable::Kind::kJoiner: {
        const bool first = !std::exchange(target.called, true);
        return first ? heap_.NewText("") : target.self;
      }
    }
    return {};
  }

  Value CallMacro(const Callable& callable, const EvaluatedArgs& given) {
    const Stmt& macro = *callable.macro;
    Scope* scope = NewScope(callable.scope);
    if (!heap_.Charge(macro.params.size() * (1 + given.named.size() / 8))) return {};
    if (given.positional.size() > macro.params.size()) {
      return heap_.Fail("macro '", macro.name, "' takes not more than ", macro.params.size(),
                        " arguments");
    }
    for (size_t i = 0; i < macro.params.size(); ++i) {
      const auto& [name, fallback] = macro.params[i];
      const auto named =
          std::ranges::find(given.named, name, &std::pair<std::string_view, Value>::first);
      Value value;
      if (i < given.positional.size()) {
        value = given.positional[i];
      } else if (named != given.named.end()) {
        value = named->second;
      } else {
        value = Eval(fallback.get(), scope);
      }
      scope->variables[name] = value;
    }
    for (const auto& [name, value] : given.named) {
      if (std::ranges::find(macro.params, name, [](const auto& p) -> std::string_view {
            return p.first;
          }) == macro.params.end()) {
        return heap_.Fail("macro '", macro.name, "' has no argument '", name, "'");
      }
    }
    Text out;
    Exec(macro.body, scope, out);
    return heap_.NewText(std::move(out));
  }

  Value CallGlobal(std::string_view name, const EvaluatedArgs& given) {
    if (name == "range") return Range(given);
    if (name == "raise_exception") {
      const Bound bound(heap_, name, "message", given.args());
      Text message;
      AppendStr(heap_, bound[0], message);
      return heap_.Raise(message.bytes());
    }
    if (name == "strftime_now") {
      const Bound bound(heap_, name, "format", given.args());
      const Text date("%d %b %Y", false);
      const Text& format = bound.text(heap_, 0, date);
      if (!options_.strftime_now) return heap_.Fail("strftime_now is not available");
      return heap_.NewText(options_.strftime_now(format.bytes()));
    }
    if (name == "joiner") {
      const Bound bound(heap_, name, "sep", given.args());
      const Value separator = bound.has(0) ? bound[0] : heap_.NewText(", ");
      return heap_.NewCallable({.kind = Callable::Kind::kJoiner, .self = separator});
    }
    // namespace and dict: from a dict, then from names.
    Dict dict;
    for (const Value from : given.positional) {
      if (!from.is(Type::kDict)) return heap_.Fail(name, "() takes a dict and named arguments");
      for (const auto& [key, value] : from.dict->items) dict.Set(heap_, key, value);
    }
    for (const auto& [key, value] : given.named) dict.Set(heap_, heap_.NewText(key), value);
    if (name == "dict") return heap_.NewDict(std::move(dict));
    heap_.Charge(4 + dict.items.size());
    const Value space = heap_.NewNamespace();
    for (const auto& [key, value] : dict.items) {
      if (!key.is(Type::kText) || !heap_.ChargeBytes(key.text->bytes().size())) continue;
      space.space->attributes[key.text->bytes()] = value;
    }
    return space;
  }

  Value Range(const EvaluatedArgs& given) {
    const Bound bound(heap_, "range", "start stop step", given.args());
    int64_t start = 0;
    int64_t stop = bound.integer(heap_, 0, 0);
    if (bound.has(1)) {
      start = stop;
      stop = bound.integer(heap_, 1, 0);
    }
    const int64_t step = bound.integer(heap_, 2, 1);
    if (!heap_.ok()) return {};
    if (step == 0) return heap_.Fail("range() arg 3 must not be zero");
    std::vector<Value> items;
    // Beyond these bounds the list could not be made anyway; within them no sum overflows.
    constexpr int64_t kFar = int64_t{1} << 60;
    if (std::max({start, stop, step}) > kFar || std::min({start, stop, step}) < -kFar) {
      return heap_.Exhaust("the size of a range");
    }
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
      if (items.size() >= static_cast<size_t>(kMaxRange)) {
        return heap_.Exhaust("the size of a range");
      }
      items.push_back(Value(i));
    }
    return heap_.NewList(std::move(items));
  }

  Heap& heap_;
  const RunOptions& options_;
  std::deque<Scope> scopes_;
  std::deque<Loop> loops_;  // they outlive their iteration, because a macro may hold one
  int frames_ = 0;
};

}  // namespace

absl::StatusOr<Text> Run(const Template& program,
                         const std::vector<std::pair<std::string, Value>>& variables, Heap& heap,
                         const RunOptions& options) {
  return Interpreter(heap, options).RunAll(program, variables);
}

}  // namespace flotilla::jinja
