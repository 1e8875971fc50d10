#include "router/http/route_hint.h"

#include <cstddef>
#include <string>

#include "router/names.h"

namespace flotilla::router {
namespace {

constexpr std::size_t kHintBytes = 200;
constexpr std::size_t kTypos = 3;

// The path without versions in front of it and without superfluous slashes:
// "/v1//v1/models/" is "/models".
std::string Bare(std::string_view path) {
  std::string bare;
  while (!path.empty()) {
    if (path.front() == '/') {
      path.remove_prefix(1);
      continue;
    }
    const std::string_view segment = path.substr(0, path.find('/'));
    path.remove_prefix(segment.size());
    if (bare.empty() && (segment == "v1" || segment == "api" || segment == "openai")) continue;
    bare += '/';
    bare += segment;
  }
  return bare;
}

// "/v1/models/x" is one of "/v1/models/{id}".
bool IsOneOf(std::string_view asked, std::string_view path) {
  constexpr std::string_view kId = "{id}";
  const std::size_t id = path.find(kId);
  if (id == std::string_view::npos) return asked == path;
  const std::string_view rest = path.substr(id + kId.size());
  return asked.size() > id + rest.size() && asked.starts_with(path.substr(0, id)) &&
         asked.ends_with(rest);
}

}  // namespace

std::string_view NearestPath(std::string_view asked, std::span<const std::string_view> paths) {
  const std::string bare = Bare(asked.substr(0, kHintBytes));
  if (bare.empty()) return {};
  for (std::string_view path : paths) {
    if (IsOneOf(bare, Bare(path))) return path;
  }
  std::string_view nearest;
  std::size_t least = kTypos + 1;
  for (std::string_view path : paths) {
    const std::string other = Bare(path);
    const std::size_t typos = EditDistance(bare, other);
    // If half of a short name differs, it is another name.
    if (typos < least && typos * 2 < other.size()) {
      least = typos;
      nearest = path;
    }
  }
  return nearest;
}

}  // namespace flotilla::router
