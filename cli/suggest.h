// Suggests existing names when a user types a name that does not exist. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flotilla {

// Returns the names of `names` that are nearest to `typed`, three at most. The distance is the
// number of errors (EditDistance in router/names.h), of which one in three letters and three in
// all are allowed. A name that has all words of `typed` has the distance one and a half
// (`--port`: `--http-port`, `--grpc-port`). Small and capital letters are the same, and so are `_`
// and `-`. Empty if `typed` is longer than 64 bytes.
std::vector<std::string> NamesLike(std::string_view typed, const std::vector<std::string>& names);

}  // namespace flotilla
