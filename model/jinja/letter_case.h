// The case of letters and the classes of characters, as Python's str has them, by ICU's tables.
// Pure functions of their arguments; the heap records costs.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/jinja/value.h"

namespace flotilla::jinja {

// A text that is longer than before keeps the marks of the characters that it comes from.
Text Lowered(Heap& heap, const Text& text);
Text Uppered(Heap& heap, const Text& text);
Text CaseFolded(Heap& heap, const Text& text);
Text SwapCased(Heap& heap, const Text& text);
Text Capitalized(Heap& heap, const Text& text);
Text TitleCased(Heap& heap, const Text& text);  // str.title: letters after uncased ones rise
Text Titled(Heap& heap, const Text& text);      // the filter: after space, dash or bracket

// Classes of characters. Python's names are those of str's methods.
bool IsSpace(uint32_t character);  // as str.strip and str.split see it, too
bool IsAlpha(uint32_t character);
bool IsDecimal(uint32_t character);
bool IsDigit(uint32_t character);
bool IsNumeric(uint32_t character);
bool IsAlphanumeric(uint32_t character);
bool IsPrintable(uint32_t character);

// str.islower and str.isupper: there is a cased character, and none of another case.
bool IsLowerText(std::string_view text);
bool IsUpperText(std::string_view text);

}  // namespace flotilla::jinja
