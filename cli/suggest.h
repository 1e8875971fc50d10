// Suggests existing names when a user types a name that does not exist. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flotilla::cli {

// Returns the names of `names` that are nearest to `typed`, three at most. The distance is the
// number of errors (EditDistance in router/names.h). One error in three letters is allowed, and
// three errors in all. A name that has all words of `typed` has the distance one and a half: for
// `--port`, `--http-port` and `--grpc-port`. Small and capital letters are the same, and so are
// `_` and `-`. Returns no name if `typed` is longer than 64 bytes.
std::vector<std::string> NamesLike(std::string_view typed, const std::vector<std::string>& names);

}  // namespace flotilla::cli
