#include "model/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "model/jinja/builtins.h"

namespace flotilla::jinja {
namespace {

using Kind = Token::Kind;

// Recursive descent, with Jinja's precedences. The first failure sticks; a
// parse function then returns null, and callers may dereference only after
// checking. After a failure the cursor stands at the end, which ends all loops.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<std::shared_ptr<const Template>> Run() {
    auto program = std::make_shared<Template>();
    program->body = ParseBody({});
    if (!status_.ok()) return status_;
    return std::shared_ptr<const Template>(std::move(program));
  }

 private:
  // ---- Cursor ----

  const Token& Now() const { return tokens_[at_]; }
  const Token& Ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool ok() const { return status_.ok(); }

  Token Take() {
    Token token = Now();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  std::nullptr_t Fail(std::string_view problem) {
    if (ok()) status_ = InvalidArgument("template line ", Now().line, ": ", problem);
    at_ = tokens_.size() - 1;
    return nullptr;
  }

  std::nullptr_t Unexpected() {
    const std::string_view text = Now().text;
    return Fail(text.empty() ? "unexpected end of a tag or of the template"
                             : Cat("unexpected '", text.substr(0, 40), "'"));
  }

  bool IsOperator(std::string_view op) const {
    return Now().kind == Kind::kOperator && Now().text == op;
  }
  bool IsName(std::string_view name) const {
    return Now().kind == Kind::kName && Now().text == name;
  }
  bool SkipOperator(std::string_view op) { return IsOperator(op) && (Take(), true); }
  bool SkipName(std::string_view name) { return IsName(name) && (Take(), true); }

  void ExpectOperator(std::string_view op) {
    if (!SkipOperator(op)) Unexpected();
  }
  void Expect(Kind kind) {
    if (Now().kind != kind) {
      Unexpected();
    } else {
      Take();
    }
  }
  std::string ExpectName() {
    if (Now().kind == Kind::kName) return Take().text;
    Unexpected();
    return {};
  }

  // Counts one level of recursion while alive.
  class Level {
   public:
    explicit Level(Parser* parser) : parser_(parser) {
      if (++parser_->level_ > kMaxNesting) parser_->Fail("nested too deeply");
    }
    ~Level() { --parser_->level_; }

   private:
    Parser* parser_;
  };

  // ---- Statements ----

  // Statements up to a block whose name is in `ends`; the cursor is left after
  // that name. An empty list means up to the end of the template.
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

  // A body that ends with `end`, after the rest of the opening tag.
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
    if (name == "generation") {  // marks what the assistant said; prints nothing
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
      const std::string& end = tokens_[at_ - 1].text;
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
    if (ok() && tokens_[at_ - 1].text == "else") {
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

  // ---- Expressions ----

  ExprPtr NewExpr(Expr::Kind kind) const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = Now().line;
    return expr;
  }

  void AddArg(Expr& expr, ExprPtr arg) {
    if (arg != nullptr) Deepen(expr, *arg);
    expr.args.push_back(std::move(arg));
  }

  void Deepen(Expr& expr, const Expr& child) {
    expr.depth = std::max(expr.depth, child.depth + 1);
    if (expr.depth > kMaxNesting) Fail("an expression is nested too deeply");
  }

  template <typename... Args>
  ExprPtr Node(Expr::Kind kind, Args... args) {
    ExprPtr expr = NewExpr(kind);
    (AddArg(*expr, std::move(args)), ...);
    return expr;
  }

  // One expression, or several with commas between: a tuple.
  ExprPtr ParseTuple(bool with_condition = true) {
    const auto one = [&] { return with_condition ? ParseExpression() : ParseOr(); };
    ExprPtr first = one();
    if (!IsOperator(",")) return first;
    ExprPtr tuple = Node(Expr::Kind::kTuple, std::move(first));
    while (SkipOperator(",") && StartsExpression()) AddArg(*tuple, one());
    return tuple;
  }

  bool StartsExpression() const {
    return Now().kind != Kind::kPrintEnd && Now().kind != Kind::kBlockEnd &&
           Now().kind != Kind::kEnd && !IsOperator(")");
  }

  ExprPtr ParseExpression() {
    const Level level(this);
    ExprPtr expr = ParseOr();
    while (SkipName("if")) {
      ExprPtr condition = ParseOr();
      ExprPtr otherwise;
      if (SkipName("else")) otherwise = ParseExpression();
      expr = Node(Expr::Kind::kIf, std::move(expr), std::move(condition), std::move(otherwise));
    }
    return expr;
  }

  ExprPtr ParseOr() {
    ExprPtr left = ParseAnd();
    while (SkipName("or")) left = Node(Expr::Kind::kOr, std::move(left), ParseAnd());
    return left;
  }

  ExprPtr ParseAnd() {
    ExprPtr left = ParseNot();
    while (SkipName("and")) left = Node(Expr::Kind::kAnd, std::move(left), ParseNot());
    return left;
  }

  ExprPtr ParseNot() {
    if (!SkipName("not")) return ParseCompare();
    const Level level(this);
    return Node(Expr::Kind::kNot, ParseNot());
  }

  std::optional<Op> TakeComparison() {
    constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::kEq}, {"!=", Op::kNe},
                                                        {"<", Op::kLt},  {"<=", Op::kLe},
                                                        {">", Op::kGt},  {">=", Op::kGe}};
    for (const auto& [text, op] : kOps) {
      if (SkipOperator(text)) return op;
    }
    if (SkipName("in")) return Op::kIn;
    if (IsName("not") && Ahead().kind == Kind::kName && Ahead().text == "in") {
      Take();
      Take();
      return Op::kNotIn;
    }
    return std::nullopt;
  }

  ExprPtr ParseCompare() {
    ExprPtr first = ParseSum();
    std::optional<Op> op = TakeComparison();
    if (!op) return first;
    ExprPtr compare = Node(Expr::Kind::kCompare, std::move(first));
    for (; op; op = TakeComparison()) {
      compare->ops.push_back(*op);
      AddArg(*compare, ParseSum());
    }
    return compare;
  }

  using Operators = std::initializer_list<std::pair<std::string_view, Op>>;

  // Left-associative operators over operands that `next` parses.
  template <typename Next>
  ExprPtr ParseBinary(Operators operators, Next next) {
    ExprPtr left = next();
    while (ok()) {
      const auto* match = std::ranges::find_if(
          operators, [&](const auto& entry) { return IsOperator(entry.first); });
      if (match == operators.end()) break;
      Take();
      left = Node(Expr::Kind::kBinary, std::move(left), next());
      left->op = match->second;
    }
    return left;
  }

  ExprPtr ParseSum() {
    return ParseBinary({{"+", Op::kAdd}, {"-", Op::kSub}}, [this] { return ParseConcat(); });
  }

  ExprPtr ParseConcat() {
    ExprPtr first = ParseProduct();
    if (!IsOperator("~")) return first;
    ExprPtr concat = Node(Expr::Kind::kConcat, std::move(first));
    while (SkipOperator("~")) AddArg(*concat, ParseProduct());
    return concat;
  }

  ExprPtr ParseProduct() {
    return ParseBinary({{"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}},
                       [this] { return ParsePower(); });
  }

  ExprPtr ParsePower() {
    return ParseBinary({{"**", Op::kPow}}, [this] { return ParseUnary(/*with_filters=*/true); });
  }

  ExprPtr ParseUnary(bool with_filters) {
    const Level level(this);
    ExprPtr expr;
    if (SkipOperator("-")) {
      expr = Node(Expr::Kind::kNegate, ParseUnary(/*with_filters=*/false));
    } else if (SkipOperator("+")) {
      expr = Node(Expr::Kind::kPositive, ParseUnary(/*with_filters=*/false));
    } else {
      expr = ParsePostfix(ParsePrimary());
    }
    return with_filters ? ParseFilters(std::move(expr), /*first_without_pipe=*/false)
                        : std::move(expr);
  }

  ExprPtr Literal(Value value) const {
    ExprPtr expr = NewExpr(Expr::Kind::kLiteral);
    expr->value = value;
    return expr;
  }

  ExprPtr ParsePrimary() {
    switch (Now().kind) {
      case Kind::kName: {
        ExprPtr expr = NewExpr(Expr::Kind::kName);
        const std::string name = Take().text;
        if (name == "true" || name == "True") return Literal(Value(true));
        if (name == "false" || name == "False") return Literal(Value(false));
        if (name == "none" || name == "None") return Literal(Value::None());
        expr->name = name;
        return expr;
      }
      case Kind::kInteger:
      case Kind::kFloat:
        return ParseNumber();
      case Kind::kString: {
        ExprPtr expr = NewExpr(Expr::Kind::kLiteral);
        std::string text;
        while (Now().kind == Kind::kString) text += Take().text;  // adjacent ones join
        expr->text = std::make_unique<Text>(text, /*user=*/false);
        expr->value = Value(static_cast<const Text*>(expr->text.get()));
        return expr;
      }
      default:
        break;
    }
    if (SkipOperator("(")) return ParseParenthesised();
    if (SkipOperator("[")) {
      ExprPtr list = NewExpr(Expr::Kind::kList);
      ParseItems("]", [&] { AddArg(*list, ParseExpression()); });
      return list;
    }
    if (SkipOperator("{")) {
      ExprPtr dict = NewExpr(Expr::Kind::kDict);
      ParseItems("}", [&] {
        AddArg(*dict, ParseExpression());
        ExpectOperator(":");
        AddArg(*dict, ParseExpression());
      });
      return dict;
    }
    return Unexpected();
  }

  ExprPtr ParseNumber() {
    const Token token = Take();
    const char* begin = token.text.data();
    const char* end = begin + token.text.size();
    int64_t integer = 0;
    double real = 0;
    const bool whole = token.kind == Kind::kInteger;
    const auto parsed =
        whole ? std::from_chars(begin, end, integer) : std::from_chars(begin, end, real);
    if (parsed.ec != std::errc()) return Fail("a number is too large");
    return Literal(whole ? Value(integer) : Value(real));
  }

  ExprPtr ParseParenthesised() {
    if (SkipOperator(")")) return NewExpr(Expr::Kind::kTuple);
    ExprPtr expr = ParseTuple();
    ExpectOperator(")");
    return expr;
  }

  // Items with commas between, up to and past `close`.
  template <typename Item>
  void ParseItems(std::string_view close, Item item) {
    while (ok() && !SkipOperator(close)) {
      item();
      if (!IsOperator(close)) ExpectOperator(",");
    }
  }

  ExprPtr ParsePostfix(ExprPtr expr) {
    while (ok()) {
      if (SkipOperator(".")) {
        expr = Node(Expr::Kind::kAttribute, std::move(expr));
        if (Now().kind == Kind::kInteger) {  // x.0 is x[0]
          expr->kind = Expr::Kind::kSubscript;
          AddArg(*expr, ParseNumber());
        } else {
          expr->name = ExpectName();
        }
      } else if (SkipOperator("[")) {
        expr = ParseSubscript(std::move(expr));
      } else if (IsOperator("(")) {
        expr = Node(Expr::Kind::kCall, std::move(expr));
        ParseArguments(*expr);
      } else {
        break;
      }
    }
    return expr;
  }

  // After the [ of x[key] or x[start:stop:step].
  ExprPtr ParseSubscript(ExprPtr object) {
    ExprPtr start;
    if (!IsOperator(":")) start = ParseTuple();
    if (SkipOperator("]")) return Node(Expr::Kind::kSubscript, std::move(object), std::move(start));
    ExprPtr slice = Node(Expr::Kind::kSlice, std::move(object), std::move(start));
    while (ok() && slice->args.size() < 4) {
      const bool given = SkipOperator(":") && !IsOperator(":") && !IsOperator("]");
      AddArg(*slice, given ? ParseExpression() : nullptr);
    }
    ExpectOperator("]");
    return slice;
  }

  // (a, b, name=c), appended to the arguments of `call`.
  void ParseArguments(Expr& call) {
    ExpectOperator("(");
    ParseItems(")", [&] {
      if (IsOperator("*") || IsOperator("**")) {
        Fail("argument unpacking is not supported");
      } else if (Now().kind == Kind::kName && Ahead().kind == Kind::kOperator &&
                 Ahead().text == "=") {
        std::string name = Take().text;
        Take();
        ExprPtr value = ParseExpression();
        if (value != nullptr) Deepen(call, *value);
        call.named.emplace_back(std::move(name), std::move(value));
      } else {
        AddArg(call, ParseExpression());
      }
    });
  }

  // Filters and tests after an operand; a null operand is a block's output.
  ExprPtr ParseFilters(ExprPtr expr, bool first_without_pipe) {
    while (ok()) {
      if (std::exchange(first_without_pipe, false) || SkipOperator("|")) {
        expr = Node(Expr::Kind::kFilter, std::move(expr));
        expr->name = ExpectName();
        if (ok() && !IsFilter(expr->name)) return Fail(Cat("no filter '", expr->name, "'"));
        if (IsOperator("(")) ParseArguments(*expr);
      } else if (IsName("is")) {
        expr = ParseTest(std::move(expr));
      } else if (IsOperator("(")) {
        expr = Node(Expr::Kind::kCall, std::move(expr));
        ParseArguments(*expr);
      } else {
        break;
      }
    }
    return expr;
  }

  ExprPtr ParseTest(ExprPtr operand) {
    Take();
    const bool negated = SkipName("not");
    ExprPtr test = Node(Expr::Kind::kTest, std::move(operand));
    test->name = ExpectName();
    if (ok() && !IsTest(test->name)) return Fail(Cat("no test '", test->name, "'"));
    const bool keyword = IsName("else") || IsName("or") || IsName("and") || IsName("is");
    const bool operand_follows = (Now().kind == Kind::kName && !keyword && !IsName("if") &&
                                  !IsName("in") && !IsName("not")) ||
                                 Now().kind == Kind::kInteger || Now().kind == Kind::kFloat ||
                                 Now().kind == Kind::kString || IsOperator("[") || IsOperator("{");
    if (IsOperator("(")) {
      ParseArguments(*test);
    } else if (operand_follows) {
      AddArg(*test, ParsePostfix(ParsePrimary()));
    }
    return negated ? Node(Expr::Kind::kNot, std::move(test)) : std::move(test);
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int level_ = 0;
  int loops_ = 0;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const Template>> Parse(std::vector<Token> tokens) {
  return Parser(std::move(tokens)).Run();
}

}  // namespace flotilla::jinja
