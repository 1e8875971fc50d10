// The character that stands for a space in the tokens of SentencePiece's models: U+2581.
#pragma once

#include <cstdint>
#include <string_view>

namespace flotilla::model {

inline constexpr uint32_t kSpaceMarkCodePoint = 0x2581;
inline constexpr std::string_view kSpaceMark = "\xe2\x96\x81";

}  // namespace flotilla::model
