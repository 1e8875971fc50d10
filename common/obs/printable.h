// Printable: makes text from outside safe for a line of a log or a terminal.
#pragma once

#include <string>
#include <string_view>

namespace flotilla {

// Returns `text` with an escape for each character that could move the cursor, end a line, be
// invisible, or change the order of other characters:
// * \n, \r and \t;
// * other controls of ASCII, and bytes that are no UTF-8, as \x1b;
// * controls of C1, line and paragraph separators, and characters that have no width or change the
//   direction of text (U+202E and the like), as \u{202e}.
// Other characters stay. A backslash and a quotation mark become \\ and \" if `quoted`.
std::string Printable(std::string_view text, bool quoted = false);

// Whether Printable(text) is `text`.
bool IsPrintable(std::string_view text);

}  // namespace flotilla
