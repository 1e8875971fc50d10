// Finds the path that a client may have meant by an unknown one. Pure function.
#pragma once

#include <span>
#include <string_view>

namespace flotilla::router {

// The path of `paths` that differs from `asked` only by a missing, wrong or repeated "/v1" in
// front, by slashes, or else by at most three characters; empty if there is none. The part that
// "{id}" stands for in a path may be anything. Only the first 200 bytes of `asked` count.
std::string_view NearestPath(std::string_view asked, std::span<const std::string_view> paths);

}  // namespace flotilla::router
