// ProgramRun: one run of a template program. Internal to the interpreter: interpreter.cc has the
// statements, and evaluation.cc the expressions.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "model/jinja/ast.h"
#include "model/jinja/builtins.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/value.h"

namespace flotilla::jinja {

// Variables of the template, of a loop's body or of one macro call.
struct Scope {
  Scope* parent = nullptr;
  absl::flat_hash_map<std::string_view, Value, TextHash, TextEqual> variables;
};

class ProgramRun {
 public:
  ProgramRun(Heap& heap, const RunOptions& options) : heap_(heap), options_(options) {}

  absl::StatusOr<Text> RunAll(const Template& program,
                              const std::vector<std::pair<std::string, Value>>& variables);

 private:
  // The most frames of recursion: the nesting of the program times that of macro calls. A frame
  // takes about 1 KB of stack.
  static constexpr int kMaxFrames = 700;

  enum class Flow { kNext, kBreak, kContinue };

  // Counts one frame of recursion while alive.
  class Frame {
   public:
    explicit Frame(ProgramRun* run) : run_(run) {
      if (++run_->frames_ > kMaxFrames) run_->heap_.Exhaust("recursion");
    }
    ~Frame() { --run_->frames_; }

   private:
    ProgramRun* run_;
  };

  Scope* NewScope(Scope* parent);
  // Makes the names undefined in the scope, whatever they are outside of it.
  void Hide(const std::vector<std::string>& names, Scope* scope);

  // ---- Statements ----

  Flow Exec(const Body& body, Scope* scope, Text& out);
  Flow Exec(const Stmt& stmt, Scope* scope, Text& out);
  Value NewMacro(const Stmt& stmt, Scope* scope);
  void EmitValue(Value value, Text& out);
  void Emit(const Text& text, Text& out);
  Flow ExecCaptured(const Stmt& stmt, Scope* scope, Text& out);
  void Assign(const Target& target, Value value, Scope* scope);
  Flow ExecFor(const Stmt& stmt, Scope* scope, Text& out);
  Flow RunLoop(const Stmt& stmt, Value iterated, Scope* scope, int64_t depth0, Text& out);
  Value CallLoop(const Loop& loop, const Args& args);

  // ---- Expressions ----

  // The evaluated arguments of a call, filter or test, from expr.args[1] on.
  struct EvaluatedArgs {
    std::vector<Value> positional;
    std::vector<std::pair<std::string_view, Value>> named;
    Args args() const { return {positional, named}; }
  };

  Value LookUp(std::string_view name, const Scope* scope);
  Value Eval(const Expr* expr, Scope* scope);
  std::vector<Value> EvalAll(const Expr& expr, size_t from, Scope* scope);
  Value EvalDict(const Expr& expr, Scope* scope);
  Value EvalMember(const Expr& expr, Scope* scope);
  Value EvalCompare(const Expr& expr, Scope* scope);
  EvaluatedArgs EvalArgs(const Expr& expr, Scope* scope);
  Value EvalWithInput(const Expr& expr, Scope* scope, Value input);
  // `caller` is the macro of a call block, or undefined.
  Value EvalCall(const Expr& expr, Scope* scope, Value caller = {});
  Value FailNotCallable(const Expr& callee, Value value);
  Value CallMacro(const Callable& callable, EvaluatedArgs& given);

  Heap& heap_;
  const RunOptions& options_;
  std::deque<Scope> scopes_;
  std::deque<Loop> loops_;  // they outlive their iteration, because a macro may hold one
  int frames_ = 0;
};

}  // namespace flotilla::jinja
