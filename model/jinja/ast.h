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
  ExprPtr unpacked;        // of a call: *list, or null
  ExprPtr unpacked_named;  // of a call: **dict, or null
  std::vector<Op> ops;
};

// The target of a for or set: a name, a namespace's attribute, or several targets (unpacking).
struct Target {
  std::string name;
  std::string attribute;  // of the namespace `name`, if not empty
  std::vector<Target> parts;
  bool unpack = false;
};

struct Stmt {
  enum class Kind : uint8_t {
    kText,      // text
    kPrint,     // expr
    kIf,        // branches: condition (null: else) and body
    kFor,       // target in expr, if condition; recursive; body, else_body
    kSet,       // target = expr
    kSetBlock,  // target = body, through the filter expr (may be null)
    kMacro,     // name, params; body
    kCall,      // the call expr, with a macro of these params and body as `caller`
    kFilter,    // body through the filter expr
    kBreak,
    kContinue,
    kWith,  // body, in a scope of its own with these params
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
  bool recursive = false;
  // The body of a macro reads these names, and they are none of its params.
  bool takes_caller = false;
  bool takes_varargs = false;
  bool takes_kwargs = false;
  std::vector<Branch> branches;
  Body body;
  Body else_body;
  // Names that are undefined from the start of the body's scope on (hidden_names.h).
  std::vector<std::string> hidden;
  std::vector<std::string> else_hidden;
};

struct Template {
  Body body;
  std::vector<std::string> hidden;  // as in Stmt
};

}  // namespace flotilla::jinja
