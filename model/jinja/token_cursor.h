// TokenCursor: where a parser stands in a template's tokens, and its first error.
//
// The first failure sticks. A parse function then returns null, so callers must check a
// result before they dereference it. After a failure the cursor stands at the end, which
// ends all loops.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "model/jinja/builtins.h"
#include "model/jinja/lexer.h"
#include "model/jinja/parser.h"

namespace flotilla::jinja {

class TokenCursor {
 public:
  using Kind = Token::Kind;

  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Now() const { return tokens_[at_]; }
  const Token& Ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  bool ok() const { return status_.ok(); }

  Token Take() {
    Token token = Now();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  // Records the failure. Always returns null.
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
    explicit Level(TokenCursor* parser) : parser_(parser) {
      if (++parser_->level_ > kMaxNesting) parser_->Fail("nested too deeply");
    }
    ~Level() { --parser_->level_; }

   private:
    TokenCursor* parser_;
  };

  // The text of the token taken last.
  const std::string& TakenText() const { return tokens_[at_ - 1].text; }
  const absl::Status& status() const { return status_; }

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int level_ = 0;
  absl::Status status_;
};

}  // namespace flotilla::jinja
