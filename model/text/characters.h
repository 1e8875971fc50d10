// Classes of characters, as the reference tokenizers define them. Pure functions.
#pragma once

#include <cstdint>

namespace flotilla::model {

// Unicode's White_Space.
bool IsWhiteSpace(uint32_t code_point);
// \w of Unicode's regular expressions (UTS 18, annex C).
bool IsWordCharacter(uint32_t code_point);

}  // namespace flotilla::model
