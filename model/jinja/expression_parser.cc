#include "model/jinja/expression_parser.h"

#include <charconv>
#include <cstdlib>
#include <string>

namespace flotilla::jinja {

ExprPtr ExpressionParser::NewExpr(Expr::Kind kind) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = Now().line;
  return expr;
}

void ExpressionParser::AddArg(Expr& expr, ExprPtr arg) {
  if (arg != nullptr) Deepen(expr, *arg);
  expr.args.push_back(std::move(arg));
}

void ExpressionParser::Deepen(Expr& expr, const Expr& child) {
  expr.depth = std::max(expr.depth, child.depth + 1);
  if (expr.depth > kMaxNesting) Fail("an expression is nested too deeply");
}

ExprPtr ExpressionParser::ParseTuple(bool with_condition) {
  const auto one = [&] { return with_condition ? ParseExpression() : ParseOr(); };
  ExprPtr first = one();
  if (IsOperator(",")) {
    ExprPtr tuple = Node(Expr::Kind::kTuple, std::move(first));
    while (SkipOperator(",") && StartsExpression()) AddArg(*tuple, one());
    first = std::move(tuple);
  }
  RefuseUnknown();
  return first;
}

void ExpressionParser::NoteUnknown(std::string_view what, std::string_view name) {
  if (conditions_ == 0 && unknown_.empty()) unknown_ = Cat("no ", what, " '", name, "'");
}

void ExpressionParser::RefuseUnknown() {
  if (expressions_ == 0 && !unknown_.empty()) Fail(unknown_);
}

bool ExpressionParser::StartsExpression() const {
  return Now().kind != Kind::kPrintEnd && Now().kind != Kind::kBlockEnd &&
         Now().kind != Kind::kEnd && !IsOperator(")");
}

ExprPtr ExpressionParser::ParseExpression() {
  const Level level(this);
  // A condition behind this expression is none of what is around it.
  std::string around = std::exchange(unknown_, {});
  ++expressions_;
  ExprPtr expr = ParseOr();
  while (SkipName("if")) {
    unknown_.clear();
    ++conditions_;
    ExprPtr condition = ParseOr();
    ExprPtr otherwise;
    if (SkipName("else")) otherwise = ParseExpression();
    --conditions_;
    expr = Node(Expr::Kind::kIf, std::move(expr), std::move(condition), std::move(otherwise));
  }
  --expressions_;
  if (!around.empty()) unknown_ = std::move(around);
  RefuseUnknown();
  return expr;
}

ExprPtr ExpressionParser::ParseOr() {
  ExprPtr left = ParseAnd();
  while (SkipName("or")) left = Node(Expr::Kind::kOr, std::move(left), ParseAnd());
  return left;
}

ExprPtr ExpressionParser::ParseAnd() {
  ExprPtr left = ParseNot();
  while (SkipName("and")) left = Node(Expr::Kind::kAnd, std::move(left), ParseNot());
  return left;
}

ExprPtr ExpressionParser::ParseNot() {
  if (!SkipName("not")) return ParseCompare();
  const Level level(this);
  return Node(Expr::Kind::kNot, ParseNot());
}

std::optional<Op> ExpressionParser::TakeComparison() {
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

ExprPtr ExpressionParser::ParseCompare() {
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

ExprPtr ExpressionParser::ParseSum() {
  return ParseBinary({{"+", Op::kAdd}, {"-", Op::kSub}}, [this] { return ParseConcat(); });
}

ExprPtr ExpressionParser::ParseConcat() {
  ExprPtr first = ParseProduct();
  if (!IsOperator("~")) return first;
  ExprPtr concat = Node(Expr::Kind::kConcat, std::move(first));
  while (SkipOperator("~")) AddArg(*concat, ParseProduct());
  return concat;
}

ExprPtr ExpressionParser::Joined(std::vector<ExprPtr> parts) {
  ExprPtr concat = NewExpr(Expr::Kind::kConcat);
  for (ExprPtr& part : parts) AddArg(*concat, std::move(part));
  return concat;
}

ExprPtr ExpressionParser::ParseProduct() {
  return ParseBinary({{"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}},
                     [this] { return ParsePower(); });
}

ExprPtr ExpressionParser::ParsePower() {
  return ParseBinary({{"**", Op::kPow}}, [this] { return ParseUnary(/*with_filters=*/true); });
}

ExprPtr ExpressionParser::ParseUnary(bool with_filters) {
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

ExprPtr ExpressionParser::Literal(Value value) const {
  ExprPtr expr = NewExpr(Expr::Kind::kLiteral);
  expr->value = value;
  return expr;
}

ExprPtr ExpressionParser::ParsePrimary() {
  switch (Now().kind) {
    case Kind::kName: {
      ExprPtr expr = NewExpr(Expr::Kind::kName);
      const std::string name = Take().text;
      if (name == "true" || name == "True") return Literal(Value(true));
      if (name == "false" || name == "False") return Literal(Value(false));
      if (name == "none" || name == "None") return Literal(Value::None());
      expr->name = name;
      read_.caller |= name == "caller";
      read_.varargs |= name == "varargs";
      read_.kwargs |= name == "kwargs";
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

ExprPtr ExpressionParser::ParseNumber() {
  const Token token = Take();
  const char* begin = token.text.data();
  const char* end = begin + token.text.size();
  int64_t integer = 0;
  double real = 0;
  const bool whole = token.kind == Kind::kInteger;
  const int base = *begin == 'x' ? 16 : *begin == 'o' ? 8 : *begin == 'b' ? 2 : 10;
  if (base != 10) ++begin;
  const auto parsed =
      whole ? std::from_chars(begin, end, integer, base) : std::from_chars(begin, end, real);
  if (parsed.ec != std::errc() && whole) return Fail("a number is too large");
  if (parsed.ec != std::errc()) real = std::strtod(begin, nullptr);  // infinity or zero
  return Literal(whole ? Value(integer) : Value(real));
}

ExprPtr ExpressionParser::ParseParenthesised() {
  if (SkipOperator(")")) return NewExpr(Expr::Kind::kTuple);
  ExprPtr expr = ParseTuple();
  ExpectOperator(")");
  return expr;
}

ExprPtr ExpressionParser::ParsePostfix(ExprPtr expr) {
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

ExprPtr ExpressionParser::ParseSubscript(ExprPtr object) {
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

void ExpressionParser::ParseArguments(Expr& call) {
  ExpectOperator("(");
  const auto unpacked = [&](ExprPtr& list) {
    Take();
    list = ParseExpression();
    if (list != nullptr) Deepen(call, *list);
  };
  ParseItems(")", [&] {
    const bool last = call.unpacked_named != nullptr;
    if (last || (IsOperator("*") && call.unpacked != nullptr)) {
      Fail("an argument follows **, or a second *");
    } else if (IsOperator("*")) {
      unpacked(call.unpacked);
    } else if (IsOperator("**")) {
      unpacked(call.unpacked_named);
    } else if (Now().kind == Kind::kName && Ahead().kind == Kind::kOperator &&
               Ahead().text == "=") {
      std::string name = Take().text;
      Take();
      ExprPtr value = ParseExpression();
      if (value != nullptr) Deepen(call, *value);
      call.named.emplace_back(std::move(name), std::move(value));
    } else if (!call.named.empty() || call.unpacked != nullptr) {
      Fail("a positional argument follows a named one or *");
    } else {
      AddArg(call, ParseExpression());
    }
  });
}

ExprPtr ExpressionParser::ParseFilters(ExprPtr expr, bool first_without_pipe) {
  while (ok()) {
    if (std::exchange(first_without_pipe, false) || SkipOperator("|")) {
      expr = Node(Expr::Kind::kFilter, std::move(expr));
      expr->name = ExpectName();
      if (ok() && !IsFilter(expr->name)) NoteUnknown("filter", expr->name);
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

ExprPtr ExpressionParser::ParseTest(ExprPtr operand) {
  Take();
  const bool negated = SkipName("not");
  ExprPtr test = Node(Expr::Kind::kTest, std::move(operand));
  test->name = ExpectName();
  if (ok() && !IsTest(test->name)) NoteUnknown("test", test->name);
  if (IsName("is")) return Fail("a test cannot follow a test");
  const bool keyword = IsName("else") || IsName("or") || IsName("and");
  const bool operand_follows = (Now().kind == Kind::kName && !keyword) ||
                               Now().kind == Kind::kInteger || Now().kind == Kind::kFloat ||
                               Now().kind == Kind::kString || IsOperator("[") || IsOperator("{");
  if (IsOperator("(")) {
    ParseArguments(*test);
  } else if (operand_follows) {
    AddArg(*test, ParsePostfix(ParsePrimary()));
  }
  return negated ? Node(Expr::Kind::kNot, std::move(test)) : std::move(test);
}

}  // namespace flotilla::jinja
