// Classes of characters, as the reference tokenizers define them. Pure functions.
#pragma once

#include <cstdint>

namespace flotilla::model {

// Unicode's White_Space, of a character that is not ASCII.
bool IsWhiteSpaceBeyondAscii(uint32_t code_point);
// Unicode's White_Space.
inline bool IsWhiteSpace(uint32_t code_point) {
  if (code_point >= 0x80) return IsWhiteSpaceBeyondAscii(code_point);
  return code_point == ' ' || (code_point >= 0x9 && code_point <= 0xd);
}
// \w of Unicode's regular expressions (UTS 18, annex C).
bool IsWordCharacter(uint32_t code_point);

}  // namespace flotilla::model
