// ExpressionParser: what stands inside {{ }} and after a tag's name. Recursive
// descent, with Jinja's precedences, lowest first; errors as TokenCursor says.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "model/jinja/ast.h"
#include "model/jinja/token_cursor.h"

namespace flotilla::jinja {

class ExpressionParser : public TokenCursor {
 public:
  using TokenCursor::TokenCursor;

  // One expression, or several with commas between: a tuple.
  ExprPtr ParseTuple(bool with_condition = true);
  ExprPtr ParseExpression();
  // Filters and tests after an operand; a null operand is a block's output.
  ExprPtr ParseFilters(ExprPtr expr, bool first_without_pipe);

 private:
  ExprPtr NewExpr(Expr::Kind kind) const;
  void AddArg(Expr& expr, ExprPtr arg);
  void Deepen(Expr& expr, const Expr& child);
  template <typename... Args>
  ExprPtr Node(Expr::Kind kind, Args... args) {
    ExprPtr expr = NewExpr(kind);
    (AddArg(*expr, std::move(args)), ...);
    return expr;
  }
  bool StartsExpression() const;
  ExprPtr ParseOr();
  ExprPtr ParseAnd();
  ExprPtr ParseNot();
  std::optional<Op> TakeComparison();
  ExprPtr ParseCompare();
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
  ExprPtr ParseSum();
  ExprPtr ParseConcat();
  ExprPtr ParseProduct();
  ExprPtr ParsePower();
  ExprPtr ParseUnary(bool with_filters);
  ExprPtr Literal(Value value) const;
  ExprPtr ParsePrimary();
  ExprPtr ParseNumber();
  ExprPtr ParseParenthesised();
  // Items with commas between, up to and past `close`.
  template <typename Item>
  void ParseItems(std::string_view close, Item item) {
    while (ok() && !SkipOperator(close)) {
      item();
      if (!IsOperator(close)) ExpectOperator(",");
    }
  }
  ExprPtr ParsePostfix(ExprPtr expr);
  // After the [ of x[key] or x[start:stop:step].
  ExprPtr ParseSubscript(ExprPtr object);
  // (a, b, name=c), appended to the arguments of `call`.
  void ParseArguments(Expr& call);
  ExprPtr ParseTest(ExprPtr operand);
};

}  // namespace flotilla::jinja
