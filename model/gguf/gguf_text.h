// The metadata of a GGUF file as text for people.
#pragma once

#include <string>
#include <string_view>

#include "model/gguf/gguf_file.h"

namespace flotilla::model {

// Control characters and bytes that are not UTF-8 are escaped.
std::string EscapedText(std::string_view text);
// Long strings and arrays are shortened.
std::string ValueText(const GgufValue& value);
// E.g. "u32" or "string[49152]".
std::string TypeText(const GgufValue& value);

}  // namespace flotilla::model
