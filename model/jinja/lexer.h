// Cuts a template into tokens and applies the whitespace rules of transformers:
// trim_blocks, lstrip_blocks, the signs - and + at tags, and one newline dropped at the end.
// The lexer drops comments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace flotilla::jinja {

struct Token {
  enum class Kind : uint8_t {
    kText,        // outside of tags
    kPrintBegin,  // {{
    kPrintEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kInteger,  // text: its digits, behind x, o or b if they are not decimal
    kFloat,
    kString,    // text: its value, escapes resolved
    kOperator,  // text: as written
    kEnd,       // of the template
  };
  Kind kind;
  std::string text;
  uint32_t line;
};

// InvalidArgument, with the line, for characters and tags that are not Jinja.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace flotilla::jinja
