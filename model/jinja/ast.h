// The program of a chat template. The parser builds it; afterwards it is only read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/jinja/value.h"

namespace flotilla::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<std::unique_ptr<Stmt>>;

enum class Op : uint8_t {
  kNone,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn,
};

// One node of an expression. The meaning of `args` depends on the kind.
struct Expr {
  enum class Kind : uint8_t {
    kLiteral,    // value
    kName,       // name
    kList,       // items
    kTuple,      // items
    kDict,       // key, value, key, value, ...
    kAttribute,  // object; name
    kSubscript,  // object, key
    kSlice,      // object, start, stop, step (null where left out)
    kCall,       // callee, positional arguments...; named
    kFilter,     // input (null in filter blocks), positional...; name, named
    kTest,       // input, positional...; name, named
    kNot,        // operand
    kNegate,     // operand
    kPositive,   // operand
    kBinary,     // left, right; op
    kAnd,        // left, right
    kOr,         // left, right
    kCompare,    // operand, operand, ...; ops between them
    kConcat,     // operands of ~
    kIf,         // then, condition, else (null where left out)
  };

  Kind kind;
  Op op = Op::kNone;
  uint32_t line = 0;
  int depth = 1;  // of the tree below and including this node
  std::string name;
  Value value;
  std::unique_ptr<Text> text;  // owns the text of a literal
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<Op> ops;
};

// The target of a for or set: one name, several (unpacking), or a namespace's attribute.
struct Target {
  std::vector<std::string> names;
  std::string attribute;  // of names[0], if not empty
  bool unpack = false;
};

struct Stmt {
  enum class Kind : uint8_t {
    kText,      // text
    kPrint,     // expr
    kIf,        // branches: condition (null: else) and body
    kFor,       // target in expr, if condition; body, else_body
    kSet,       // target = expr
    kSetBlock,  // target = body, through the filter expr (may be null)
    kMacro,     // name, params; body
    kFilter,    // body through the filter expr
    kBreak,
    kContinue,
    kBlock,  // body, run as it stands
  };
  struct Branch {
    ExprPtr condition;
    Body body;
  };

  Kind kind;
  uint32_t line = 0;
  Text text;
  ExprPtr expr;
  ExprPtr condition;
  Target target;
  std::string name;
  std::vector<std::pair<std::string, ExprPtr>> params;  // with defaults, or null
  std::vector<Branch> branches;
  Body body;
  Body else_body;
};

struct Template {
  Body body;
};

}  // namespace flotilla::jinja
