// The expressions of a program.
#include <algorithm>
#include <optional>

#include "model/jinja/globals.h"
#include "model/jinja/operators.h"
#include "model/jinja/program_run.h"

namespace flotilla::jinja {
namespace {

// True for the filters of a block, whose innermost one has no operand.
bool IsHeadless(const Expr& expr) {
  const Expr* e = &expr;
  while (e->kind == Expr::Kind::kFilter && e->args[0] != nullptr) e = e->args[0].get();
  return e->kind == Expr::Kind::kFilter;
}

}  // namespace

Value ProgramRun::LookUp(std::string_view name, const Scope* scope) {
  uint64_t walked = 0;
  for (; scope != nullptr; scope = scope->parent) {
    // Four scopes take as long as a step.
    if (++walked % 4 == 0 || name.size() >= 64) heap_.Charge(1 + name.size() / 64);
    if (!heap_.ok()) return {};
    const auto it = scope->variables.find(name);
    if (it != scope->variables.end()) return it->second;
  }
  return FindGlobal(heap_, name);
}

Value ProgramRun::Eval(const Expr* expr, Scope* scope) {
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
    case Expr::Kind::kNegate: {
      const Value operand = arg(0);
      if (operand.is(Type::kFloat)) return Value(-operand.real);  // -0.0 is not 0 - 0.0
      return Arithmetic(heap_, Op::kSub, Value(int64_t{0}), operand);
    }
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

std::vector<Value> ProgramRun::EvalAll(const Expr& expr, size_t from, Scope* scope) {
  std::vector<Value> values;
  for (size_t i = from; i < expr.args.size(); ++i) {
    values.push_back(Eval(expr.args[i].get(), scope));
  }
  return values;
}

Value ProgramRun::EvalDict(const Expr& expr, Scope* scope) {
  Dict dict;
  for (size_t i = 0; i + 1 < expr.args.size(); i += 2) {
    const Value key = Eval(expr.args[i].get(), scope);
    if (!dict.Set(heap_, key, Eval(expr.args[i + 1].get(), scope))) {
      return heap_.Fail("a dict key of type '", TypeName(key), "'");
    }
  }
  return heap_.NewDict(std::move(dict));
}

Value ProgramRun::EvalMember(const Expr& expr, Scope* scope) {
  const Value object = Eval(expr.args[0].get(), scope);
  if (object.is(Type::kUndefined)) {
    const Expr& owner = *expr.args[0];
    return heap_.Fail("'", owner.name.empty() ? "value" : owner.name, "' is undefined");
  }
  heap_.set_line(expr.line);
  if (expr.kind == Expr::Kind::kAttribute) return GetAttribute(heap_, object, expr.name);
  return GetItem(heap_, object, Eval(expr.args[1].get(), scope));
}

Value ProgramRun::EvalCompare(const Expr& expr, Scope* scope) {
  Value left = Eval(expr.args[0].get(), scope);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    const Value right = Eval(expr.args[i + 1].get(), scope);
    if (!Compare(heap_, expr.ops[i], left, right)) return Value(false);
    left = right;
  }
  return Value(true);
}

ProgramRun::EvaluatedArgs ProgramRun::EvalArgs(const Expr& expr, Scope* scope) {
  EvaluatedArgs out{EvalAll(expr, 1, scope), {}};
  if (expr.unpacked != nullptr) {
    const std::vector<Value> items = Items(heap_, Eval(expr.unpacked.get(), scope));
    out.positional.insert(out.positional.end(), items.begin(), items.end());
  }
  for (const auto& [name, value] : expr.named) {
    out.named.emplace_back(name, Eval(value.get(), scope));
  }
  if (expr.unpacked_named != nullptr) {
    const Value dict = Eval(expr.unpacked_named.get(), scope);
    if (!dict.is(Type::kDict)) heap_.Fail("the argument after ** is a '", TypeName(dict), "'");
    for (size_t i = 0; heap_.ok() && i < dict.dict->items.size(); ++i) {
      const auto& [name, value] = dict.dict->items[i];
      if (!name.is(Type::kText)) heap_.Fail("the names after ** are not all strings");
      if (!heap_.Charge(1)) break;
      out.named.emplace_back(name.text->bytes(), value);
    }
  }
  heap_.set_line(expr.line);
  return out;
}

// Applies a filter or test to `input`. In a filter block the innermost filter of a chain has
// no operand of its own; its input is the block's text.
Value ProgramRun::EvalWithInput(const Expr& expr, Scope* scope, Value input) {
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

// Calls what the expression names. A call block passes itself on as the argument `caller`.
Value ProgramRun::EvalCall(const Expr& expr, Scope* scope, Value caller) {
  const Value callee = Eval(expr.args[0].get(), scope);
  EvaluatedArgs given = EvalArgs(expr, scope);
  if (!caller.is(Type::kUndefined)) given.named.emplace_back("caller", caller);
  if (!heap_.ok()) return {};
  if (callee.is(Type::kLoop)) return CallLoop(*callee.loop, given.args());
  if (!callee.is(Type::kCallable)) return FailNotCallable(*expr.args[0], callee);
  const Callable& target = *callee.callable;
  switch (target.kind) {
    case Callable::Kind::kMacro:
      return CallMacro(target, given);
    case Callable::Kind::kGlobal:
      return CallGlobal(heap_, options_, target.name, given.args());
    case Callable::Kind::kMethod:
      return CallMethod(heap_, target.self, target.name, given.args());
    case Callable::Kind::kJoiner: {
      const bool first = !std::exchange(target.called, true);
      return first ? heap_.NewText("") : target.self;
    }
  }
  return {};
}

Value ProgramRun::FailNotCallable(const Expr& callee, Value value) {
  const std::string_view name = callee.name;
  if (callee.kind == Expr::Kind::kAttribute &&
      (IsForbiddenMethod(Type::kList, name) || IsForbiddenMethod(Type::kDict, name))) {
    return heap_.Fail("'", name, "' is refused: a template cannot change lists and dicts");
  }
  return heap_.Fail("'", name.empty() ? "value" : name, "' of type ", TypeName(value),
                    " is not callable");
}

Value ProgramRun::CallMacro(const Callable& callable, EvaluatedArgs& given) {
  const Stmt& macro = *callable.macro;
  Scope* scope = NewScope(callable.scope);
  if (!heap_.Charge(macro.params.size() * (1 + given.named.size() / 8))) return {};
  const auto take = [&](std::string_view name) -> std::optional<Value> {
    const auto it =
        std::ranges::find(given.named, name, &std::pair<std::string_view, Value>::first);
    if (it == given.named.end()) return std::nullopt;
    const Value value = it->second;
    given.named.erase(it);
    return value;
  };
  std::vector<size_t> missing;
  for (size_t i = 0; i < macro.params.size(); ++i) {
    const std::string& name = macro.params[i].first;
    std::optional<Value> value;
    if (i < given.positional.size()) {
      value = given.positional[i];
    } else {
      value = take(name);
    }
    if (!value) missing.push_back(i);
    if (!heap_.ChargeBytes(name.size())) return {};
    scope->variables[name] = value.value_or(Value());
  }
  if (macro.takes_caller) scope->variables["caller"] = take("caller").value_or(Value());
  if (macro.takes_kwargs) {
    Dict dict;
    for (const auto& [name, value] : std::exchange(given.named, {})) {
      dict.Set(heap_, heap_.NewText(name), value);
    }
    scope->variables["kwargs"] = heap_.NewDict(std::move(dict));
  }
  if (!given.named.empty()) {
    return heap_.Fail("macro '", macro.name, "' has no argument '", given.named[0].first, "'");
  }
  const size_t taken = std::min(given.positional.size(), macro.params.size());
  if (macro.takes_varargs) {
    const auto rest = given.positional.begin() + static_cast<std::ptrdiff_t>(taken);
    scope->variables["varargs"] = heap_.NewList({rest, given.positional.end()}, /*tuple=*/true);
  } else if (given.positional.size() > taken) {
    return heap_.Fail("macro '", macro.name, "' takes not more than ", macro.params.size(),
                      " arguments");
  }
  for (const size_t i : missing) {
    scope->variables[macro.params[i].first] = Eval(macro.params[i].second.get(), scope);
  }
  Hide(macro.hidden, scope);
  Text out;
  Exec(macro.body, scope, out);
  return heap_.NewText(std::move(out));
}

}  // namespace flotilla::jinja
