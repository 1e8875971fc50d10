// Unicode's normalisation forms (UAX 15). Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace flotilla::model {

enum class UnicodeForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// Returns `text`, which is valid UTF-8, in a form. Characters that are younger than Unicode 9 stay
// as they are, because the tables of `tokenizers` do not have them. Takes time in proportion to the
// text, also where it has long runs of accents.
std::string InForm(UnicodeForm form, std::string_view text);

}  // namespace flotilla::model
