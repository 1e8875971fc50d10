#include "model/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "model/jinja/expression_parser.h"

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

  // Parses the rest of the opening tag, then a body that ends with `end`.
  Body ParseBlock(std::string_view end) {
    Expect(Kind::kBlockEnd);
    Body body = ParseBody({end});
    Expect(Kind::kBlockEnd);
    return body;
  }

  std::unique_ptr<Stmt> ParseStatement() {
    if (Now().kind != Kind::kName) return Unexpected();
    const std::string name = Take().text;
    if (name == "if") return ParseIf();
    if (name == "for") return ParseFor();
    if (name == "set") return ParseSet();
    if (name == "macro") return ParseMacro();
    if (name == "filter") {
      auto stmt = NewStmt(Stmt::Kind::kFilter);
      stmt->expr = ParseFilters(nullptr, /*first_without_pipe=*/true);
      stmt->body = ParseBlock("endfilter");
      return stmt;
    }
    if (name == "generation") {  // marks the assistant's text; prints nothing itself
      auto stmt = NewStmt(Stmt::Kind::kBlock);
      stmt->body = ParseBlock("endgeneration");
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
    for (bool more = true; more && ok();) {
      Stmt::Branch branch;
      if (!has_else) branch.condition = ParseTuple();
      Expect(Kind::kBlockEnd);
      branch.body = has_else ? ParseBody({"endif"}) : ParseBody({"elif", "else", "endif"});
      stmt->branches.push_back(std::move(branch));
      const std::string& end = TakenText();
      more = end != "endif";
      has_else = end == "else";
    }
    Expect(Kind::kBlockEnd);
    return stmt;
  }

  Target ParseTarget(bool with_attribute) {
    Target target;
    const bool parenthesised = SkipOperator("(");
    do {
      if (target.unpack && Now().kind != Kind::kName) break;  // a trailing comma
      target.names.push_back(ExpectName());
      if (with_attribute && target.names.size() == 1 && SkipOperator(".")) {
        target.attribute = ExpectName();
        return target;
      }
      target.unpack = IsOperator(",") || target.unpack;
    } while (SkipOperator(","));
    if (parenthesised) ExpectOperator(")");
    return target;
  }

  std::unique_ptr<Stmt> ParseFor() {
    auto stmt = NewStmt(Stmt::Kind::kFor);
    stmt->target = ParseTarget(/*with_attribute=*/false);
    if (!SkipName("in")) return Unexpected();
    stmt->expr = ParseTuple(/*with_condition=*/false);
    if (SkipName("if")) stmt->condition = ParseExpression();
    if (IsName("recursive")) return Fail("recursive loops are not supported");
    Expect(Kind::kBlockEnd);
    ++loops_;
    stmt->body = ParseBody({"else", "endfor"});
    --loops_;
    if (ok() && TakenText() == "else") {
      Expect(Kind::kBlockEnd);
      stmt->else_body = ParseBody({"endfor"});
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
    stmt->body = ParseBlock("endset");
    return stmt;
  }

  std::unique_ptr<Stmt> ParseMacro() {
    auto stmt = NewStmt(Stmt::Kind::kMacro);
    stmt->name = ExpectName();
    ExpectOperator("(");
    while (ok() && !IsOperator(")")) {
      if (!stmt->params.empty()) ExpectOperator(",");
      std::string param = ExpectName();
      ExprPtr fallback;
      if (SkipOperator("=")) fallback = ParseExpression();
      stmt->params.emplace_back(std::move(param), std::move(fallback));
    }
    ExpectOperator(")");
    const int loops = std::exchange(loops_, 0);
    stmt->body = ParseBlock("endmacro");
    loops_ = loops;
    return stmt;
  }

  int loops_ = 0;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Template>> Parse(std::vector<Token> tokens) {
  return Parser(std::move(tokens)).Run();
}

}  // namespace flotilla::jinja
