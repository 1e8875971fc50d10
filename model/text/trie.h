// Trie: finds the tokens that a text begins with.
//
// It is immutable after creation; any number of threads may use it at once.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "common/types/ids.h"

namespace flotilla::model {

class Trie {
 public:
  Trie() { roots_.fill(0); }
  // Of texts that are not empty. Of equal ones the smallest id stays. Takes about 9 bytes for each
  // byte of the texts.
  explicit Trie(std::vector<std::pair<std::string_view, TokenId>> tokens);

  // Calls `found` with the length and the id of each token that `text` begins with, the shortest
  // first.
  template <class Found>
  void ForEachPrefix(std::string_view text, const Found& found) const {
    if (text.empty()) return;
    uint32_t node = roots_[static_cast<uint8_t>(text[0])];
    for (size_t at = 1; node != 0; ++at) {
      if (nodes_[node].token >= 0) found(at, nodes_[node].token);
      if (at == text.size()) return;
      node = Child(node, static_cast<uint8_t>(text[at]));
    }
  }

  // The token with exactly this text, or -1.
  TokenId Find(std::string_view text) const {
    TokenId whole = -1;
    ForEachPrefix(text, [&](size_t bytes, TokenId id) { whole = bytes == text.size() ? id : -1; });
    return whole;
  }

 private:
  struct Node {
    uint32_t first_child = 0;
    uint16_t children = 0;
    TokenId token = -1;
  };

  // 0: there is none.
  uint32_t Child(uint32_t node, uint8_t label) const {
    const uint8_t* begin = labels_.data() + nodes_[node].first_child;
    const uint8_t* end = begin + nodes_[node].children;
    const uint8_t* at = end - begin > 8
                            ? std::lower_bound(begin, end, label)
                            : std::find_if(begin, end, [&](uint8_t own) { return own >= label; });
    return at == end || *at != label ? 0 : static_cast<uint32_t>(at - labels_.data());
  }

  std::array<uint32_t, 256> roots_;  // the node of a text's first byte
  std::vector<Node> nodes_;          // children lie side by side, by ascending label
  std::vector<uint8_t> labels_;      // [nodes]
};

}  // namespace flotilla::model
