#include "worker/compute/last_breaker.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace flotilla::worker {
namespace {

// So many tokens are looked at one by one, which takes at most 0.2 us for each. Most texts have a
// breaker among them, so that the automaton is not built, which takes up to 1 ms.
constexpr std::size_t kOneByOne = 2048;

// The heads of one token.
std::pair<std::size_t, std::size_t> HeadsOf(const DryBreakers& breakers, TokenId token) {
  const auto [first, last] = std::equal_range(breakers.heads.begin(), breakers.heads.end(), token);
  return {static_cast<std::size_t>(first - breakers.heads.begin()),
          static_cast<std::size_t>(last - breakers.heads.begin())};
}

// The number of tokens of the longest tail of the head latest[at] that is behind it; none: no
// breaker begins there. The tails ascend, so those that begin alike follow each other.
std::optional<std::size_t> TailAt(const DryBreakers& breakers, absl::Span<const TokenId> latest,
                                  std::size_t at) {
  const auto tails = absl::MakeConstSpan(breakers.tail_of);
  const auto tail = [&](std::uint32_t number) -> const std::vector<TokenId>& {
    return breakers.tails[number];
  };
  auto [first, last] = HeadsOf(breakers, latest[at]);
  std::optional<std::size_t> longest;
  for (std::size_t depth = 0; first < last; ++depth) {
    if (tail(tails[first]).size() == depth) {
      longest = depth;
      if (++first == last) break;
    }
    if (depth == at) break;  // no token is left
    const TokenId next = latest[at - depth - 1];
    if (tail(tails[first])[depth] == next && tail(tails[last - 1])[depth] == next) continue;
    const auto begin = tails.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = tails.begin() + static_cast<std::ptrdiff_t>(last);
    const auto low = std::partition_point(
        begin, end, [&](std::uint32_t number) { return tail(number)[depth] < next; });
    const auto high = std::partition_point(
        low, end, [&](std::uint32_t number) { return tail(number)[depth] == next; });
    first = static_cast<std::size_t>(low - tails.begin());
    last = static_cast<std::size_t>(high - tails.begin());
  }
  return longest;
}

// All breakers in one automaton (Aho, Corasick 1975), which reads a history from its latest token
// on, so that it comes to a tail, the last token first, and then to the head. n tokens take at most
// 2 n steps.
class BreakerAutomaton {
 public:
  explicit BreakerAutomaton(const DryBreakers& breakers) {
    edges_.reserve(breakers.heads.size() + breakers.tails.size() * 2);
    std::vector<std::uint32_t> ends;  // of the tails
    for (const std::vector<TokenId>& tail : breakers.tails) {
      std::uint32_t node = 0;
      for (auto token = tail.rbegin(); token != tail.rend(); ++token) node = Child(node, *token);
      ends.push_back(node);
    }
    const std::size_t inner = nodes_.size();
    for (std::size_t i = 0; i < breakers.heads.size(); ++i) {
      Node& node = nodes_[Child(ends[breakers.tail_of[i]], breakers.heads[i])];
      node.longest = node.depth;
    }
    // By depth, since what a node falls back to is not as deep as the node. Nodes of heads have
    // nothing to fall back to: the search ends there, as it does wherever a breaker is whole.
    std::array<std::vector<std::uint32_t>, 1 + DryBreakers::kMaxTailTokens> levels;
    for (std::uint32_t node = 1; node < inner; ++node) levels[nodes_[node].depth].push_back(node);
    for (const std::vector<std::uint32_t>& level : levels) {
      for (const std::uint32_t at : level) {
        Node& node = nodes_[at];
        if (node.depth > 1) node.shorter = Next(nodes_[node.parent].shorter, node.token);
        if (node.longest == 0) node.longest = nodes_[node.shorter].longest;
      }
    }
  }

  // The first head in latest[begin, end) of a breaker that is whole there: its place, and the
  // number of tokens of its longest tail.
  std::optional<std::pair<std::size_t, std::size_t>> Find(absl::Span<const TokenId> latest,
                                                          std::size_t begin,
                                                          std::size_t end) const {
    std::uint32_t node = 0;
    for (std::size_t at = begin; at < end; ++at) {
      node = Next(node, latest[at]);
      if (const std::size_t tokens = nodes_[node].longest; tokens > 0) return {{at, tokens - 1}};
    }
    return std::nullopt;
  }

 private:
  // The last tokens that were read: as many as are the first ones of some breaker.
  struct Node {
    std::uint32_t parent = 0;
    std::uint32_t shorter = 0;  // the node of the next fewer such tokens
    TokenId token = 0;          // the last of them
    std::uint8_t depth = 0;     // how many they are
    std::uint8_t longest = 0;   // the tokens of the longest breaker that is whole here, or 0
  };
  static std::uint64_t Edge(std::uint32_t node, TokenId token) {
    return std::uint64_t{node} << 32 | static_cast<std::uint32_t>(token);
  }

  // The child of a node, which is made if there is none.
  std::uint32_t Child(std::uint32_t node, TokenId token) {
    const auto [edge, is_new] =
        edges_.try_emplace(Edge(node, token), static_cast<std::uint32_t>(nodes_.size()));
    if (is_new) {
      const auto depth = static_cast<std::uint8_t>(nodes_[node].depth + 1);
      nodes_.push_back({.parent = node, .token = token, .depth = depth});
    }
    return edge->second;
  }

  // The node after one more token.
  std::uint32_t Next(std::uint32_t node, TokenId token) const {
    for (;; node = nodes_[node].shorter) {
      if (const auto edge = edges_.find(Edge(node, token)); edge != edges_.end()) {
        return edge->second;
      }
      if (node == 0) return 0;
    }
  }

  std::vector<Node> nodes_{1};
  absl::flat_hash_map<std::uint64_t, std::uint32_t> edges_;
};

// The first head in latest[begin, end) of a breaker that is whole, as BreakerAutomaton::Find has
// it.
std::optional<std::pair<std::size_t, std::size_t>> FindHead(const DryBreakers& breakers,
                                                            absl::Span<const TokenId> latest,
                                                            std::size_t begin, std::size_t end) {
  for (std::size_t at = begin; at < std::min(end, begin + kOneByOne); ++at) {
    if (const auto tail = TailAt(breakers, latest, at)) return {{at, *tail}};
  }
  if (end <= begin + kOneByOne) return std::nullopt;
  // The tails of the heads that are left may begin before these.
  return BreakerAutomaton(breakers).Find(latest, begin + kOneByOne - DryBreakers::kMaxTailTokens,
                                         end);
}

}  // namespace

bool IsBreaker(const DryBreakers& breakers, TokenId token) {
  // The empty tail is the first one.
  const auto [first, last] = HeadsOf(breakers, token);
  return first < last && breakers.tails[breakers.tail_of[first]].empty();
}

std::uint32_t SinceBreaker(const DryBreakers& breakers, absl::Span<const TokenId> latest,
                           std::uint32_t most, std::uint32_t period) {
  constexpr std::size_t kTail = DryBreakers::kMaxTailTokens;
  const std::size_t reach = std::min(latest.size(), most + kTail);
  // A breaker that ends in the second period or in a later one is also in the period before.
  const std::size_t first = std::min(reach, period + kTail);
  const std::size_t rest = std::max(first, std::min<std::size_t>(reach, period + most));
  auto found = FindHead(breakers, latest, 0, first);
  if (!found.has_value()) found = FindHead(breakers, latest, rest, reach);
  if (!found.has_value()) return most;
  return static_cast<std::uint32_t>(std::min<std::size_t>(found->first - found->second, most));
}

}  // namespace flotilla::worker
