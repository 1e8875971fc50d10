// UTF-8 for the frontends: check, repair and count. model/text/utf8.h defines what is well-formed.
// Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace flotilla::router {

bool IsValidUtf8(std::string_view text);

// Every maximal ill-formed part, an unfinished end included, becomes one U+FFFD.
std::string RepairUtf8(std::string_view text);

// Characters (code points) of valid UTF-8.
std::size_t Utf8Length(std::string_view text);

}  // namespace flotilla::router
