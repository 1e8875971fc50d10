// Finds markers in text that comes byte by byte. Pure; markers are few and short.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace flotilla::router {

class MarkerScanner {
 public:
  // Adds a byte. Returns the index of the marker that it completes, if it completes one. Appends
  // the bytes that turned out to belong to no marker to `free`. No marker is a prefix of another
  // one; empty markers are never found.
  std::optional<std::size_t> Push(char c, std::span<const std::string_view> markers,
                                  std::string& free) {
    held_.push_back(c);
    while (!held_.empty()) {
      const auto at = std::find_if(markers.begin(), markers.end(), [this](std::string_view marker) {
        return marker.starts_with(held_);
      });
      if (at == markers.end()) {
        free.push_back(held_.front());
        held_.erase(0, 1);
        continue;
      }
      if (at->size() > held_.size()) return std::nullopt;
      held_.clear();
      return static_cast<std::size_t>(at - markers.begin());
    }
    return std::nullopt;
  }

  // Returns the bytes that may still become a marker, and forgets them.
  std::string Take() { return std::exchange(held_, {}); }

 private:
  std::string held_;
};

}  // namespace flotilla::router
