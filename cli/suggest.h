// What somebody may have meant who typed a name that there is not. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flotilla {

// Of `names`, three at most, those that `typed` was most probably meant to be: written like
// it, with as few errors (EditDistance in router/names.h) as any, one in three letters and three at
// most; to have all of its words counts as one and a half (`--port`: `--http-port`, `--grpc-port`).
// Small and capital letters, `_` and `-` are the same. Empty where `typed` is longer than 64 bytes.
std::vector<std::string> NamesLike(std::string_view typed, const std::vector<std::string>& names);

}  // namespace flotilla
