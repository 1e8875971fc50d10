// Suggests existing names when a user types a name that does not exist. The function is pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flotilla::cli {

// Returns the names of `names` that are nearest to `typed`, three at most. The distance is the
// number of errors (EditDistance in router/names.h). A name may have one error for each three
// letters of `typed`, rounded up, and three errors at most. A name that has all words of `typed`
// has the distance one and a half: `--http-port` has all words of `--port`. Case does not matter,
// and `_` is the same as `-`. Returns no name if `typed` is longer than 64 bytes.
std::vector<std::string> NamesLike(std::string_view typed, const std::vector<std::string>& names);

}  // namespace flotilla::cli
