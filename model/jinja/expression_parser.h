// ExpressionParser: parses the expressions inside {{ }} and after a tag's name. It uses
// recursive descent, with Jinja's precedences, lowest first; errors as TokenCursor says.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/jinja/ast.h"
#include "model/jinja/token_cursor.h"

namespace flotilla::jinja {

class ExpressionParser : public TokenCursor {
 public:
  using TokenCursor::TokenCursor;

  // Parses one expression, or several with commas between them, which make a tuple.
  ExprPtr ParseTuple(bool with_condition = true);
  ExprPtr ParseExpression();
  // Parses filters and tests after an operand. A null operand means a block's output.
  ExprPtr ParseFilters(ExprPtr expr, bool first_without_pipe);

 protected:
  // Names that have been read since the owner cleared these. A macro gets them if it reads them.
  struct ReadNames {
    bool caller = false, varargs = false, kwargs = false;
  };
  ReadNames read_;
  // How many `if` statements are around. As in jinja2, a filter or test that does not exist is an
  // error there only when it is called, and so it is in an inline if. jinja2 ends that at blocks
  // within the `if`, whose bodies then fail with the template; here it holds in them, too.
  int conditions_ = 0;
  // Fails if a filter or test does not exist that an expression without a condition has. Within an
  // expression that waits, because a condition may follow.
  void RefuseUnknown();
  // An expression that joins the texts of others.
  ExprPtr Joined(std::vector<ExprPtr> parts);

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
  // Parses left-associative operators over operands that `next` parses.
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
  // Parses items with commas between them, up to and past `close`.
  template <typename Item>
  void ParseItems(std::string_view close, Item item) {
    while (ok() && !SkipOperator(close)) {
      item();
      if (!IsOperator(close)) ExpectOperator(",");
    }
  }
  ExprPtr ParsePostfix(ExprPtr expr);
  // Parses the rest of x[key] or x[start:stop:step] after the [.
  ExprPtr ParseSubscript(ExprPtr object);
  // Parses (a, b, name=c) and appends it to the arguments of `call`.
  void ParseArguments(Expr& call);
  ExprPtr ParseTest(ExprPtr operand);
  // Notes a filter or test that does not exist, unless it is in a condition.
  void NoteUnknown(std::string_view what, std::string_view name);
  std::string unknown_;  // the error of the first one in this expression
  int expressions_ = 0;  // that are being parsed, one within another
};

}  // namespace flotilla::jinja
