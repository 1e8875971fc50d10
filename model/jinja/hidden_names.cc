#include "model/jinja/hidden_names.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace flotilla::jinja {
namespace {

// A scope under analysis, as FrameSymbolVisitor of jinja2 sees it.
struct Frame {
  Frame* outer;
  std::vector<std::string>* hidden;                // of the program
  absl::flat_hash_set<std::string_view> names;     // that belong to this scope
  absl::flat_hash_set<std::string_view> assigned;  // of these, those that it assigns first
};

void Load(Frame& frame, std::string_view name) {
  for (Frame* at = &frame; at != nullptr; at = at->outer) {
    if (!at->names.contains(name)) continue;
    // Erased, so that the name is hidden once.
    if (at != &frame && at->assigned.erase(name) > 0) at->hidden->emplace_back(name);
    return;
  }
  frame.names.insert(name);
}

bool HasOuter(const Frame& frame, std::string_view name) {
  for (const Frame* at = frame.outer; at != nullptr; at = at->outer) {
    if (at->names.contains(name)) return true;
  }
  return false;
}

void Store(Frame& frame, std::string_view name, bool in_branch) {
  if (frame.names.contains(name)) return;
  // What only a branch assigns is looked up outside before it.
  if (!in_branch && !HasOuter(frame, name)) frame.assigned.insert(name);
  frame.names.insert(name);
}

void Store(Frame& frame, const Target& target, bool in_branch) {
  for (const Target& part : target.parts) Store(frame, part, in_branch);
  if (target.unpack) return;
  if (target.attribute.empty()) {
    Store(frame, target.name, in_branch);
  } else {
    Load(frame, target.name);
  }
}

void Declare(Frame& frame, const Target& target) {
  for (const Target& part : target.parts) Declare(frame, part);
  if (!target.unpack) frame.names.insert(target.name);
}

void Load(Frame& frame, const Expr* expr) {
  if (expr == nullptr) return;
  if (expr->kind == Expr::Kind::kName) Load(frame, std::string_view(expr->name));
  for (const ExprPtr& arg : expr->args) Load(frame, arg.get());
  for (const auto& [name, value] : expr->named) Load(frame, value.get());
  Load(frame, expr->unpacked.get());
  Load(frame, expr->unpacked_named.get());
}

// Visits a body that belongs to the frame. Scopes inside wait in `inner` until all is known of it.
void Visit(Frame& frame, Body& body, bool in_branch, std::vector<Stmt*>& inner) {
  for (const auto& stmt : body) {
    switch (stmt->kind) {
      case Stmt::Kind::kIf:
        for (Stmt::Branch& branch : stmt->branches) {
          Load(frame, branch.condition.get());
          Visit(frame, branch.body, /*in_branch=*/true, inner);
        }
        break;
      case Stmt::Kind::kSet:
        Load(frame, stmt->expr.get());
        Store(frame, stmt->target, in_branch);
        break;
      case Stmt::Kind::kSetBlock:
        Store(frame, stmt->target, in_branch);
        inner.push_back(stmt.get());
        break;
      case Stmt::Kind::kMacro:
        Store(frame, stmt->name, in_branch);
        inner.push_back(stmt.get());
        break;
      case Stmt::Kind::kWith:
        for (const auto& [name, value] : stmt->params) Load(frame, value.get());
        inner.push_back(stmt.get());
        break;
      case Stmt::Kind::kFor:
      case Stmt::Kind::kCall:
      case Stmt::Kind::kFilter:
        Load(frame, stmt->expr.get());
        inner.push_back(stmt.get());
        break;
      default:
        Load(frame, stmt->expr.get());
    }
  }
}

void AnalyzeInner(Frame& outer, Stmt& stmt);

void Analyze(Frame& frame, Body& body) {
  std::vector<Stmt*> inner;
  Visit(frame, body, /*in_branch=*/false, inner);
  for (Stmt* stmt : inner) AnalyzeInner(frame, *stmt);
}

void AnalyzeInner(Frame& outer, Stmt& stmt) {
  Frame frame{.outer = &outer, .hidden = &stmt.hidden, .names = {}, .assigned = {}};
  const bool is_macro = stmt.kind == Stmt::Kind::kMacro || stmt.kind == Stmt::Kind::kCall;
  for (const auto& [name, value] : stmt.params) {
    frame.names.insert(name);
    if (is_macro) Load(frame, value.get());
  }
  if (stmt.takes_caller) frame.names.insert("caller");
  if (stmt.takes_varargs) frame.names.insert("varargs");
  if (stmt.takes_kwargs) frame.names.insert("kwargs");
  if (stmt.kind == Stmt::Kind::kFor) {
    frame.names.insert("loop");
    Declare(frame, stmt.target);
    Load(frame, stmt.condition.get());
    Frame otherwise{.outer = &outer, .hidden = &stmt.else_hidden, .names = {}, .assigned = {}};
    Analyze(otherwise, stmt.else_body);
  } else if (stmt.kind == Stmt::Kind::kFilter) {
    Load(frame, stmt.expr.get());
  }
  Analyze(frame, stmt.body);
}

}  // namespace

void FindHiddenNames(Template& program) {
  Frame root{.outer = nullptr, .hidden = &program.hidden, .names = {}, .assigned = {}};
  Analyze(root, program.body);
}

}  // namespace flotilla::jinja
