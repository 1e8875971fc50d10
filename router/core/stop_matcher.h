// StopMatcher: finds stop strings in text that arrives in pieces, and holds
// back only what may still become one. Pure; owned by one generation.
//
// The result does not depend on how the text is cut into pieces. The stop that is complete
// first ends the text; if several end at the same byte, the longest does. The matcher holds
// back the longest suffix that is a proper prefix of a stop. Text and stops are valid UTF-8,
// so a cut never splits a character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flotilla::router {

// The stop strings of a request, as all its choices look for them. Immutable. It takes 24 bytes for
// each of theirs.
class StopStrings {
 public:
  // No stop is empty.
  explicit StopStrings(const std::vector<std::string>& stops);

 private:
  friend class StopMatcher;
  static constexpr std::uint32_t kNone = 0xffffffff;
  // A node of an Aho-Corasick automaton: a prefix of some stop. Children are a
  // linked list: stops are few and short.
  struct Node {
    std::uint32_t first_child = kNone;
    std::uint32_t next_sibling = kNone;
    std::uint32_t fail = 0;      // longest proper suffix that is a node
    std::uint32_t depth = 0;     // bytes of the prefix
    std::uint32_t stop = kNone;  // longest stop that is a suffix of the prefix
    std::uint8_t byte = 0;
  };

  std::uint32_t Child(std::uint32_t node, std::uint8_t byte) const;
  void Insert(const std::string& stop, std::uint32_t index);
  void LinkFailures();

  std::vector<std::uint32_t> stop_bytes_;
  std::vector<Node> nodes_;  // nodes_[0] is the empty prefix
};

class StopMatcher {
 public:
  // With no stops, text passes through.
  explicit StopMatcher(std::shared_ptr<const StopStrings> stops) : stops_(std::move(stops)) {}
  explicit StopMatcher(const std::vector<std::string>& stops)
      : StopMatcher(std::make_shared<const StopStrings>(stops)) {}

  struct Result {
    // May be delivered now; ends before the stop string if one matched.
    std::string text;
    // Index of the stop that matched. From then on the matcher is finished:
    // nothing is held and Append returns nothing more.
    std::optional<std::size_t> stop;
  };
  Result Append(std::string_view text);

  // Called when the text ended without a stop. Returns the text that was held back.
  std::string Flush();

  // Bytes held back now.
  std::size_t held_bytes() const { return held_.size(); }

 private:
  std::shared_ptr<const StopStrings> stops_;
  std::uint32_t state_ = 0;  // a node
  std::string held_;         // the last bytes of the text, as many as the node is deep
  bool finished_ = false;
};

}  // namespace flotilla::router
