#include "scheduler/core/prefix_index.h"

#include "scheduler/core/check.h"

namespace flotilla {

PrefixNode PrefixIndex::NewNode() {
  if (unused_.empty()) {
    nodes_.emplace_back();
    return static_cast<PrefixNode>(nodes_.size() - 1);
  }
  const PrefixNode node = unused_.back();
  unused_.pop_back();
  return node;
}

PrefixNode PrefixIndex::FindRoot(absl::string_view scope) const {
  const auto found = roots_.find(scope);
  return found == roots_.end() ? kNoPrefix : found->second;
}

PrefixNode PrefixIndex::MakeRoot(absl::string_view scope) {
  if (const PrefixNode root = FindRoot(scope); root != kNoPrefix) return root;
  const PrefixNode root = NewNode();
  nodes_[root].scope = std::string(scope);
  roots_.emplace(scope, root);
  return root;
}

PrefixNode PrefixIndex::Find(PrefixNode parent, absl::Span<const TokenId> tokens) const {
  const auto found = by_content_.find(MakeContent(parent, tokens));
  return found == by_content_.end() ? kNoPrefix : *found;
}

PrefixNode PrefixIndex::Insert(PrefixNode parent, absl::Span<const TokenId> tokens, BlockId block) {
  const PrefixNode node = NewNode();
  nodes_[node] = Node{.parent = parent,
                      .children = 0,
                      .block = block,
                      .hash = MakeContent(parent, tokens).hash,
                      .tokens = {tokens.begin(), tokens.end()},
                      .scope = {}};
  ++nodes_[parent].children;
  by_content_.insert(node);
  return node;
}

void PrefixIndex::Erase(PrefixNode node) {
  FLOTILLA_CORE_CHECK(nodes_[node].children == 0);
  by_content_.erase(node);
  const PrefixNode parent = nodes_[node].parent;
  nodes_[node] = Node{};
  unused_.push_back(node);
  Node& above = nodes_[parent];
  if (--above.children > 0 || above.parent != kNoPrefix) return;
  roots_.erase(above.scope);
  above = Node{};
  unused_.push_back(parent);
}

}  // namespace flotilla
