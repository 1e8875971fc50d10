#include "model/jinja/interpreter.h"

#include "model/jinja/program_run.h"

namespace flotilla::jinja {

absl::StatusOr<Text> ProgramRun::RunAll(
    const Template& program, const std::vector<std::pair<std::string, Value>>& variables) {
  Scope* scope = NewScope(nullptr);
  for (const auto& [name, value] : variables) scope->variables[name] = value;
  Hide(program.hidden, scope);
  Text out;
  Exec(program.body, scope, out);
  if (!heap_.ok()) return heap_.status();
  return out;
}

Scope* ProgramRun::NewScope(Scope* parent) {
  heap_.Charge(4);
  scopes_.push_back({parent, {}});
  return &scopes_.back();
}

void ProgramRun::Hide(const std::vector<std::string>& names, Scope* scope) {
  for (const std::string& name : names) {
    if (!heap_.Charge(1 + name.size() / 64)) return;
    scope->variables[name] = Value();
  }
}

ProgramRun::Flow ProgramRun::Exec(const Body& body, Scope* scope, Text& out) {
  const Frame frame(this);
  for (const auto& stmt : body) {
    heap_.set_line(stmt->line);
    if (!heap_.Charge(1)) return Flow::kBreak;
    const Flow flow = Exec(*stmt, scope, out);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

ProgramRun::Flow ProgramRun::Exec(const Stmt& stmt, Scope* scope, Text& out) {
  switch (stmt.kind) {
    case Stmt::Kind::kText:
      Emit(stmt.text, out);
      return Flow::kNext;
    case Stmt::Kind::kPrint:
      EmitValue(Eval(stmt.expr.get(), scope), out);
      return Flow::kNext;
    case Stmt::Kind::kIf:
      for (const Stmt::Branch& branch : stmt.branches) {
        if (branch.condition == nullptr || Truthy(Eval(branch.condition.get(), scope))) {
          return heap_.ok() ? Exec(branch.body, scope, out) : Flow::kBreak;
        }
      }
      return Flow::kNext;
    case Stmt::Kind::kFor:
      return ExecFor(stmt, scope, out);
    case Stmt::Kind::kSet:
      Assign(stmt.target, Eval(stmt.expr.get(), scope), scope);
      return Flow::kNext;
    case Stmt::Kind::kSetBlock:
    case Stmt::Kind::kFilter:
      return ExecCaptured(stmt, scope, out);
    case Stmt::Kind::kMacro:
      if (heap_.ChargeBytes(stmt.name.size())) scope->variables[stmt.name] = NewMacro(stmt, scope);
      return Flow::kNext;
    case Stmt::Kind::kCall:
      EmitValue(EvalCall(*stmt.expr, scope, NewMacro(stmt, scope)), out);
      return Flow::kNext;
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
    case Stmt::Kind::kWith: {
      Scope* inner = NewScope(scope);
      for (const auto& [name, value] : stmt.params) {
        if (!heap_.ChargeBytes(name.size())) break;
        inner->variables[name] = Eval(value.get(), scope);
      }
      Hide(stmt.hidden, inner);
      return Exec(stmt.body, inner, out);
    }
  }
  return Flow::kNext;
}

Value ProgramRun::NewMacro(const Stmt& stmt, Scope* scope) {
  return heap_.NewCallable({.kind = Callable::Kind::kMacro, .macro = &stmt, .scope = scope});
}

void ProgramRun::EmitValue(Value value, Text& out) {
  Text text;
  AppendStr(heap_, value, text);
  Emit(text, out);
}

void ProgramRun::Emit(const Text& text, Text& out) {
  if (!heap_.Charge(text.cost())) return;
  if (out.bytes().size() + text.bytes().size() > options_.max_output_bytes) {
    heap_.Exhaust("output bytes");
    return;
  }
  out.Append(text);
}

// Runs a block set or a filter block: what its body prints goes through the statement's filter.
ProgramRun::Flow ProgramRun::ExecCaptured(const Stmt& stmt, Scope* scope, Text& out) {
  Scope* inner = NewScope(scope);
  Hide(stmt.hidden, inner);
  Text text;
  const Flow flow = Exec(stmt.body, inner, text);
  if (flow != Flow::kNext) return flow;  // it leaves a loop, and the text is lost
  Value value = heap_.NewText(std::move(text));
  const bool is_set = stmt.kind == Stmt::Kind::kSetBlock;
  if (stmt.expr != nullptr) value = EvalWithInput(*stmt.expr, is_set ? scope : inner, value);
  if (is_set) {
    Assign(stmt.target, value, scope);
  } else {
    EmitValue(value, out);
  }
  return Flow::kNext;
}

void ProgramRun::Assign(const Target& target, Value value, Scope* scope) {
  if (target.unpack) {
    const std::vector<Value> items = Items(heap_, value);
    if (items.size() != target.parts.size()) {
      heap_.Fail("cannot unpack ", items.size(), " values into ", target.parts.size(), " names");
      return;
    }
    for (size_t i = 0; i < items.size() && heap_.Charge(1); ++i) {
      Assign(target.parts[i], items[i], scope);
    }
  } else if (!target.attribute.empty()) {
    const Value object = LookUp(target.name, scope);
    if (!object.is(Type::kNamespace)) {
      heap_.Fail("cannot assign attribute on non-namespace object");
      return;
    }
    if (heap_.ChargeBytes(target.attribute.size())) {
      object.space->attributes[target.attribute] = value;
    }
  } else if (heap_.ChargeBytes(target.name.size())) {
    scope->variables[target.name] = value;
  }
}

ProgramRun::Flow ProgramRun::ExecFor(const Stmt& stmt, Scope* scope, Text& out) {
  const Value iterated = Eval(stmt.expr.get(), scope);
  if (!stmt.recursive) return RunLoop(stmt, iterated, scope, 0, out);
  Text text;
  const Flow flow = RunLoop(stmt, iterated, scope, 0, text);
  Emit(text, out);
  return flow;
}

// Runs a loop over what `iterated` holds. It is inside of `depth0` calls of loop(...). Its else may
// leave or continue the loop around it.
ProgramRun::Flow ProgramRun::RunLoop(const Stmt& stmt, Value iterated, Scope* scope, int64_t depth0,
                                     Text& out) {
  std::vector<Value> items = Items(heap_, iterated);
  Scope* body = NewScope(scope);
  if (stmt.condition != nullptr) {
    std::vector<Value> kept;
    for (const Value item : items) {
      Assign(stmt.target, item, body);
      if (!heap_.ok()) return Flow::kBreak;
      if (Truthy(Eval(stmt.condition.get(), body))) kept.push_back(item);
    }
    items = std::move(kept);
  }
  Loop& loop = loops_.emplace_back();
  loop = {.items = &items, .depth0 = depth0, .stmt = &stmt, .scope = scope};
  bool completed = false;  // a body; Jinja runs the else unless one came to its end
  for (size_t i = 0; i < items.size() && heap_.ok(); ++i) {
    loop.index0 = i;
    body->variables.clear();  // assignments do not outlive an iteration
    body->variables["loop"] = Value(static_cast<const Loop*>(&loop));
    Hide(stmt.hidden, body);
    Assign(stmt.target, items[i], body);
    const Flow flow = Exec(stmt.body, body, out);
    if (flow == Flow::kBreak) break;
    completed = completed || flow == Flow::kNext;
  }
  loop.items = nullptr;
  if (completed || stmt.else_body.empty() || !heap_.ok()) return Flow::kNext;
  Scope* otherwise = NewScope(scope);
  Hide(stmt.else_hidden, otherwise);
  return Exec(stmt.else_body, otherwise, out);
}

// The loop goes on inside of itself, with other items.
Value ProgramRun::CallLoop(const Loop& loop, const Args& args) {
  const Bound bound(heap_, "loop", "iterable", args);
  if (!loop.stmt->recursive) heap_.Fail("only a loop marked 'recursive' can be called");
  if (!heap_.ok()) return {};
  Text text;
  RunLoop(*loop.stmt, bound[0], loop.scope, loop.depth0 + 1, text);
  return heap_.NewText(std::move(text));
}

absl::StatusOr<Text> Run(const Template& program,
                         const std::vector<std::pair<std::string, Value>>& variables, Heap& heap,
                         const RunOptions& options) {
  return ProgramRun(heap, options).RunAll(program, variables);
}

}  // namespace flotilla::jinja
