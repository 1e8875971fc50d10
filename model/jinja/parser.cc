#include "model/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "model/jinja/expression_parser.h"
#include "model/jinja/hidden_names.h"

namespace flotilla::jinja {
namespace {

// Parses statements; errors as TokenCursor says.
class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  absl::StatusOr<std::shared_ptr<const Template>> Run() {
    auto program = std::make_shared<Template>();
    program->body = ParseBody({});
    if (!ok()) return status();
    FindHiddenNames(*program);
    return std::shared_ptr<const Template>(std::move(program));
  }

 private:
  // Parses statements up to a block whose name is in `ends`, and leaves the cursor after that
  // name. An empty list means up to the end of the template.
  Body ParseBody(std::initializer_list<std::string_view> ends) {
    const Level level(this);
    Body body;
    while (ok()) {
      if (Now().kind == Kind::kEnd) {
        if (ends.size() > 0) Fail(Cat("'", *(ends.end() - 1), "' is missing"));
        break;
      }
      if (Now().kind == Kind::kText) {
        auto stmt = NewStmt(Stmt::Kind::kText);
        stmt->text = Text(Take().text, /*user=*/false);
        body.push_back(std::move(stmt));
      } else if (Now().kind == Kind::kPrintBegin) {
        Take();
        auto stmt = NewStmt(Stmt::Kind::kPrint);
        stmt->expr = ParseTuple();
        Expect(Kind::kPrintEnd);
        body.push_back(std::move(stmt));
      } else {
        Expect(Kind::kBlockBegin);
        if (std::ranges::find(ends, Now().text) != ends.end()) {
          Take();
          break;
        }
        if (auto stmt = ParseStatement()) body.push_back(std::move(stmt));
      }
    }
    return body;
  }

  std::unique_ptr<Stmt> NewStmt(Stmt::Kind kind) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = Now().line;
    return stmt;
  }

  // Parses the end of a tag that opens a body. Jinja allows a colon there.
  void ExpectOpenEnd() {
    SkipOperator(":");
    Expect(Kind::kBlockEnd);
  }

  // Parses the rest of the opening tag, then a body that ends with `end`.
  Body ParseBlock(std::string_view end) {
    ExpectOpenEnd();
    Body body = ParseBody({end});
    Expect(Kind::kBlockEnd);
    return body;
  }

  // As ParseBlock, for a body that is run elsewhere, so that no loop around it can be left.
  Body ParseOwnBlock(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = ParseBlock(end);
    loops_ = loops;
    return body;
  }

  std::unique_ptr<Stmt> ParseStatement() {
    if (Now().kind != Kind::kName) return Unexpected();
    const std::string name = Take().text;
    if (name == "if") return ParseIf();
    if (name == "for") return ParseFor();
    if (name == "set") return ParseSet();
    if (name == "macro" || name == "call") return ParseMacro(name == "call");
    if (name == "with") return ParseWith();
    if (name == "print") {
      auto stmt = NewStmt(Stmt::Kind::kPrint);
      stmt->expr = ParseConcatList();
      Expect(Kind::kBlockEnd);
      return stmt;
    }
    if (name == "filter") {
      auto stmt = NewStmt(Stmt::Kind::kFilter);
      stmt->expr = ParseFilters(nullptr, /*first_without_pipe=*/true);
      RefuseUnknown();
      stmt->body = ParseBlock("endfilter");
      return stmt;
    }
    if (name == "generation") {  // marks the assistant's text; prints nothing itself
      auto stmt = NewStmt(Stmt::Kind::kWith);
      stmt->body = ParseOwnBlock("endgeneration");
      return stmt;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) return Fail(Cat("'", name, "' outside of a loop"));
      auto stmt = NewStmt(name == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue);
      Expect(Kind::kBlockEnd);
      return stmt;
    }
    return Fail(Cat("statement '", name.substr(0, 40), "' is not supported"));
  }

  std::unique_ptr<Stmt> ParseIf() {
    auto stmt = NewStmt(Stmt::Kind::kIf);
    bool has_else = false;
    ++conditions_;
    for (bool more = true; more && ok();) {
      Stmt::Branch branch;
      if (!has_else) branch.condition = ParseTuple(/*with_condition=*/false);
      ExpectOpenEnd();
      branch.body = has_else ? ParseBody({"endif"}) : ParseBody({"elif", "else", "endif"});
      stmt->branches.push_back(std::move(branch));
      const std::string& end = TakenText();
      more = end != "endif";
      has_else = end == "else";
    }
    --conditions_;
    Expect(Kind::kBlockEnd);
    return stmt;
  }

  Target ParseTarget(bool with_attribute) {
    const Level level(this);
    Target first = ParseOneTarget(with_attribute);
    if (!IsOperator(",")) return first;
    Target all;
    all.unpack = true;
    all.parts.push_back(std::move(first));
    while (SkipOperator(",") && !IsOperator(")") && Now().kind != Kind::kBlockEnd) {
      all.parts.push_back(ParseOneTarget(with_attribute));
    }
    return all;
  }

  Target ParseOneTarget(bool with_attribute) {
    Target target;
    if (SkipOperator("(")) {
      target = ParseTarget(with_attribute);
      ExpectOperator(")");
      return target;
    }
    target.name = ExpectName();
    constexpr std::string_view kConstants[] = {"true", "True", "false", "False", "none", "None"};
    if (std::ranges::find(kConstants, target.name) != std::end(kConstants)) {
      Fail(Cat("cannot assign to '", target.name, "'"));
    }
    if (with_attribute && SkipOperator(".")) target.attribute = ExpectName();
    return target;
  }

  // True if the name is a part of the target.
  static bool Assigns(const Target& target, std::string_view name) {
    return target.name == name ||
           std::ranges::any_of(target.parts, [&](const Target& t) { return Assigns(t, name); });
  }

  std::unique_ptr<Stmt> ParseFor() {
    auto stmt = NewStmt(Stmt::Kind::kFor);
    stmt->target = ParseTarget(/*with_attribute=*/false);
    if (Assigns(stmt->target, "loop")) return Fail("'loop' cannot be the target of a loop");
    if (!SkipName("in")) return Unexpected();
    stmt->expr = ParseTuple(/*with_condition=*/false);
    if (SkipName("if")) stmt->condition = ParseExpression();
    stmt->recursive = SkipName("recursive");
    ExpectOpenEnd();
    ++loops_;
    stmt->body = ParseBody({"else", "endfor"});
    --loops_;
    if (ok() && TakenText() == "else") {
      ExpectOpenEnd();
      // A recursive loop is a function of its own in Jinja, which no loop around it is left from.
      const int loops = stmt->recursive ? std::exchange(loops_, 0) : loops_;
      stmt->else_body = ParseBody({"endfor"});
      loops_ = loops;
    }
    Expect(Kind::kBlockEnd);
    return stmt;
  }

  std::unique_ptr<Stmt> ParseSet() {
    auto stmt = NewStmt(Stmt::Kind::kSet);
    stmt->target = ParseTarget(/*with_attribute=*/true);
    if (SkipOperator("=")) {
      stmt->expr = ParseTuple();
      Expect(Kind::kBlockEnd);
      return stmt;
    }
    stmt->kind = Stmt::Kind::kSetBlock;
    if (stmt->target.unpack) return Unexpected();
    if (IsOperator("|")) stmt->expr = ParseFilters(nullptr, /*first_without_pipe=*/false);
    RefuseUnknown();
    stmt->body = ParseBlock("endset");
    return stmt;
  }

  // Parses (a, b=1), the parameters of a macro.
  void ParseParams(Stmt& stmt) {
    absl::flat_hash_set<std::string> names;
    ExpectOperator("(");
    while (ok() && !IsOperator(")")) {
      if (!stmt.params.empty()) ExpectOperator(",");
      std::string param = ExpectName();
      if (!names.insert(param).second) {
        Fail(Cat("the parameter '", param.substr(0, 40), "' is there twice"));
      }
      ExprPtr fallback;
      if (SkipOperator("=")) {
        fallback = ParseExpression();
      } else if (!stmt.params.empty() && stmt.params.back().second != nullptr) {
        Fail("a parameter without a default follows one with a default");
      }
      stmt.params.emplace_back(std::move(param), std::move(fallback));
    }
    ExpectOperator(")");
  }

  // Parses a macro, or a call block, whose body is the macro `caller`.
  std::unique_ptr<Stmt> ParseMacro(bool is_call) {
    auto stmt = NewStmt(is_call ? Stmt::Kind::kCall : Stmt::Kind::kMacro);
    if (!is_call) stmt->name = ExpectName();
    if (!is_call || IsOperator("(")) ParseParams(*stmt);
    if (is_call) {
      stmt->name = "caller";
      stmt->expr = ParseExpression();
      if (ok() && stmt->expr->kind != Expr::Kind::kCall) return Fail("'call' wants a call");
    }
    const ReadNames outer = std::exchange(read_, {});
    stmt->body = ParseOwnBlock(is_call ? "endcall" : "endmacro");
    const auto is_param = [&](std::string_view name) {
      return std::ranges::any_of(stmt->params, [&](const auto& p) { return p.first == name; });
    };
    if (read_.caller && std::ranges::any_of(stmt->params, [](const auto& p) {
          return p.first == "caller" && p.second == nullptr;
        })) {
      return Fail("the parameter 'caller' needs a default");
    }
    stmt->takes_caller = read_.caller && !is_param("caller");
    stmt->takes_varargs = read_.varargs && !is_param("varargs");
    stmt->takes_kwargs = read_.kwargs && !is_param("kwargs");
    read_ = {outer.caller || read_.caller, outer.varargs || read_.varargs,
             outer.kwargs || read_.kwargs};
    return stmt;
  }

  std::unique_ptr<Stmt> ParseWith() {
    auto stmt = NewStmt(Stmt::Kind::kWith);
    while (ok() && Now().kind != Kind::kBlockEnd && !IsOperator(":")) {
      if (!stmt->params.empty()) ExpectOperator(",");
      std::string name = ExpectName();
      ExpectOperator("=");
      stmt->params.emplace_back(std::move(name), ParseExpression());
    }
    stmt->body = ParseBlock("endwith");
    return stmt;
  }

  // Parses expressions with commas between them, as one that joins their texts.
  ExprPtr ParseConcatList() {
    std::vector<ExprPtr> parts;
    while (ok() && Now().kind != Kind::kBlockEnd) {
      if (!parts.empty()) ExpectOperator(",");
      parts.push_back(ParseExpression());
    }
    return Joined(std::move(parts));
  }

  int loops_ = 0;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Template>> Parse(std::vector<Token> tokens) {
  return Parser(std::move(tokens)).Run();
}

}  // namespace flotilla::jinja
