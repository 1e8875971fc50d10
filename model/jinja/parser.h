// Parses tokens into a program.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/jinja/ast.h"
#include "model/jinja/lexer.h"

namespace flotilla::jinja {

// Statements nest at most this deep, and so do expressions. This bounds the recursion of
// parser, interpreter and destructor.
inline constexpr int kMaxNesting = 200;

// InvalidArgument, with the line, for anything that is not in the subset, including filters
// and tests that do not exist.
absl::StatusOr<std::shared_ptr<const Template>> Parse(std::vector<Token> tokens);

}  // namespace flotilla::jinja
