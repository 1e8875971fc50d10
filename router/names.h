// Finds the names that a client may have meant by an unknown name. Pure functions, whose time
// is bounded whatever the names are.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace flotilla::router {

// How many characters have to be changed, added, removed or exchanged with their neighbour
// to turn one string into the other (the optimal string alignment distance). Only the first
// 64 bytes of each count.
std::size_t EditDistance(std::string_view a, std::string_view b);

// "'b', 'a' and 3 others": the names, at most five, nearest to `wrong` first. Only the first
// 256 names are compared. Empty without names.
std::string NearestNames(std::string_view wrong, std::vector<std::string> names);

}  // namespace flotilla::router
