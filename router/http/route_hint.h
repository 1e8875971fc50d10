// Which path was meant by one that there is not. Pure function.
#pragma once

#include <span>
#include <string_view>

namespace flotilla {

// The path of `paths` that differs from `asked` only by "/v1" in front, missing, wrong or
// repeated, by slashes, or else by at most three characters; empty if there is none. What
// "{id}" stands for in a path may be anything. Only the first 200 bytes of `asked` count.
std::string_view NearestPath(std::string_view asked, std::span<const std::string_view> paths);

}  // namespace flotilla
