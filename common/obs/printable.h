// Printable: makes text from outside safe for a line of a log or a terminal.
#pragma once

#include <string>
#include <string_view>

namespace flotilla {

// `text` with everything escaped that could move the cursor, end a line, hide, or turn the
// order of what stands there: \n, \r, \t; other controls of ASCII, and bytes that are no
// UTF-8, as \x1b; controls of C1, line and paragraph separators, and what has no width or
// turns the direction (U+202E and the like), as \u{202e}. Other characters stay. A backslash
// and a quotation mark stay too, unless `quoted`: then \\ and \".
std::string Printable(std::string_view text, bool quoted = false);

// Whether Printable(text) is `text`.
bool IsPrintable(std::string_view text);

}  // namespace flotilla
