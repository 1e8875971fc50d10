#include "model/text/characters.h"

#include <unicode/uchar.h>

namespace flotilla::model {

bool IsWhiteSpaceBeyondAscii(uint32_t code_point) {
  return u_isUWhiteSpace(static_cast<UChar32>(code_point));
}

bool IsWordCharacter(uint32_t code_point) {
  const auto character = static_cast<UChar32>(code_point);
  constexpr uint32_t kWord = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return (U_GET_GC_MASK(character) & kWord) != 0 ||
         u_hasBinaryProperty(character, UCHAR_ALPHABETIC) ||
         u_hasBinaryProperty(character, UCHAR_JOIN_CONTROL);
}

}  // namespace flotilla::model
