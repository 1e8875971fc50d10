#include "router/core/stop_matcher.h"

#include <utility>

namespace flotilla::router {

StopStrings::StopStrings(const std::vector<std::string>& stops) {
  nodes_.emplace_back();
  for (std::size_t i = 0; i < stops.size(); ++i) {
    stop_bytes_.push_back(static_cast<std::uint32_t>(stops[i].size()));
    Insert(stops[i], static_cast<std::uint32_t>(i));
  }
  LinkFailures();
}

std::uint32_t StopStrings::Child(std::uint32_t node, std::uint8_t byte) const {
  std::uint32_t child = nodes_[node].first_child;
  while (child != kNone && nodes_[child].byte != byte) child = nodes_[child].next_sibling;
  return child;
}

void StopStrings::Insert(const std::string& stop, std::uint32_t index) {
  std::uint32_t at = 0;
  for (char c : stop) {
    const auto byte = static_cast<std::uint8_t>(c);
    std::uint32_t child = Child(at, byte);
    if (child == kNone) {
      child = static_cast<std::uint32_t>(nodes_.size());
      Node node;
      node.byte = byte;
      node.depth = nodes_[at].depth + 1;
      node.next_sibling = nodes_[at].first_child;
      nodes_.push_back(node);
      nodes_[at].first_child = child;
    }
    at = child;
  }
  if (nodes_[at].stop == kNone) nodes_[at].stop = index;
}

void StopStrings::LinkFailures() {
  // Goes breadth first, because a failure link points to a shorter prefix, which is then done.
  std::vector<std::uint32_t> order{0};
  for (std::size_t next = 0; next < order.size(); ++next) {
    const std::uint32_t node = order[next];
    for (std::uint32_t child = nodes_[node].first_child; child != kNone;
         child = nodes_[child].next_sibling) {
      if (node != 0) {
        std::uint32_t at = nodes_[node].fail;
        std::uint32_t target = Child(at, nodes_[child].byte);
        while (target == kNone && at != 0) {
          at = nodes_[at].fail;
          target = Child(at, nodes_[child].byte);
        }
        nodes_[child].fail = target == kNone ? 0 : target;
      }
      if (nodes_[child].stop == kNone) nodes_[child].stop = nodes_[nodes_[child].fail].stop;
      order.push_back(child);
    }
  }
}

StopMatcher::Result StopMatcher::Append(std::string_view text) {
  Result result;
  if (finished_) return result;
  if (stops_->stop_bytes_.empty()) {
    result.text = text;
    return result;
  }
  result.text = std::move(held_);
  held_.clear();
  for (char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    result.text.push_back(c);
    std::uint32_t next = stops_->Child(state_, byte);
    while (next == StopStrings::kNone && state_ != 0) {
      state_ = stops_->nodes_[state_].fail;
      next = stops_->Child(state_, byte);
    }
    state_ = next == StopStrings::kNone ? 0 : next;
    if (stops_->nodes_[state_].stop != StopStrings::kNone) {
      result.stop = stops_->nodes_[state_].stop;
      result.text.resize(result.text.size() - stops_->stop_bytes_[*result.stop]);
      finished_ = true;
      return result;
    }
  }
  const std::size_t keep = stops_->nodes_[state_].depth;
  held_ = result.text.substr(result.text.size() - keep);
  result.text.resize(result.text.size() - keep);
  return result;
}

std::string StopMatcher::Flush() {
  finished_ = true;
  return std::exchange(held_, {});
}

}  // namespace flotilla::router
