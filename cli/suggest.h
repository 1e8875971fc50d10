// What somebody may have meant who typed a name that there is not. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla {

// How many letters are to be added, taken away, replaced or exchanged with their neighbour
// to make one of the other (the optimal string alignment distance); `limit` + 1 if more than
// `limit`. Time: the product of both lengths.
std::size_t EditDistance(std::string_view a, std::string_view b, std::size_t limit);

// Of `names`, three at most, those that `typed` was most probably meant to be: written like
// it, with as few errors as any, one in three letters and three at most; to have all of its
// words counts as one and a half (`--port`: `--http-port`, `--grpc-port`). Small and capital
// letters, `_` and `-` are the same. Empty where `typed` is longer than 64 bytes.
std::vector<std::string> NamesLike(std::string_view typed, const std::vector<std::string>& names);

}  // namespace flotilla
