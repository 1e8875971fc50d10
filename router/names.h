// What a client may have meant by a name that there is not. Pure functions, whose time is
// bounded whatever the names are.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla {

// How many characters have to be changed, added, removed or exchanged with their neighbour
// to make one of the other (the optimal string alignment distance); of both, the first 64
// bytes count.
std::size_t EditDistance(std::string_view a, std::string_view b);

// "'b', 'a' and 3 others": the names that are nearest to `wrong` first, five at most. Of
// more than 256 names, the first 256 are looked at. Empty without names.
std::string NearestNames(std::string_view wrong, std::vector<std::string> names);

}  // namespace flotilla
