// The formats of strings that answers can be held to. Pure data.
#pragma once

#include <string_view>

namespace flotilla::router {

// The expression that all strings of a format match, which is anchored; empty for a format that is
// not supported. It matches less than the format where that makes it shorter: each of its strings
// is a valid one, so dates have 28 days in February, and times no leap seconds.
std::string_view PatternOfFormat(std::string_view format);

}  // namespace flotilla::router
