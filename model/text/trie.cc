#include "model/text/trie.h"

namespace flotilla::model {

Trie::Trie(std::vector<std::pair<std::string_view, TokenId>> tokens) : Trie() {
  std::ranges::sort(tokens);
  // The tokens [begin, end) begin with the `depth` bytes of a node.
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, tokens.size(), 0}};
  nodes_.emplace_back();
  labels_.push_back(0);
  for (size_t node = 0; node < ranges.size(); ++node) {
    auto [begin, end, depth] = ranges[node];
    if (begin < end && tokens[begin].first.size() == depth) {
      nodes_[node].token = tokens[begin].second;
      while (begin < end && tokens[begin].first.size() == depth) ++begin;
    }
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (begin < end) {
      const char label = tokens[begin].first[depth];
      size_t next = begin;
      while (next < end && tokens[next].first[depth] == label) ++next;
      if (node == 0) roots_[static_cast<uint8_t>(label)] = static_cast<uint32_t>(nodes_.size());
      ++nodes_[node].children;
      nodes_.emplace_back();
      labels_.push_back(static_cast<uint8_t>(label));
      ranges.push_back({begin, next, depth + 1});
      begin = next;
    }
  }
}

}  // namespace flotilla::model
