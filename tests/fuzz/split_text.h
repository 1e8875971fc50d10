// Cuts a text into pieces whose sizes an input says.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace flotilla::testing {

// Takes a line without its end off the front of `rest`.
inline std::string_view TakeLine(std::string_view& rest) {
  const std::size_t end = std::min(rest.find('\n'), rest.size());
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return line;
}

// The pieces of `text`. Each byte of `sizes` is the size of one, up to 63, and the first follows
// the last. A size of 0 is an empty piece. Without any other size all bytes come alone.
inline std::vector<std::string_view> Pieces(std::string_view text, std::string_view sizes) {
  const bool advances = std::any_of(sizes.begin(), sizes.end(), [](char c) { return c & 63; });
  std::vector<std::string_view> pieces;
  for (std::size_t i = 0; !text.empty(); ++i) {
    const std::size_t size = advances ? sizes[i % sizes.size()] & 63 : 1;
    pieces.push_back(text.substr(0, size));
    text.remove_prefix(pieces.back().size());
  }
  return pieces;
}

}  // namespace flotilla::testing
