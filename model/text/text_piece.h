// A piece of prompt text that remembers where it came from.
#pragma once

#include <string>

namespace flotilla::model {

// Text of a rendered prompt. In text of the template, special tokens such as
// <|im_end|> are recognised. In text of a user they are plain characters, so that no user
// can write a turn boundary.
struct TextPiece {
  std::string text;
  bool special_allowed = false;
};

}  // namespace flotilla::model
