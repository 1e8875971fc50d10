#include "scheduler/core/prefix_index.h"

namespace flotilla::scheduler {

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
                      .slot = {},
                      .hash = MakeContent(parent, tokens).hash,
                      .tokens = {tokens.begin(), tokens.end()},
                      .scope = {}};
  ++nodes_[parent].children;
  by_content_.insert(node);
  return node;
}

void PrefixIndex::SetBlock(PrefixNode node, BlockId block) {
  nodes_[node].block = block;
  EraseIfIdle(node);
}

void PrefixIndex::SetSlot(PrefixNode node, TierSlot slot) {
  nodes_[node].slot = slot;
  EraseIfIdle(node);
}

void PrefixIndex::EraseIfIdle(PrefixNode node) {
  while (true) {
    const Node& idle = nodes_[node];
    if (idle.children > 0 || idle.block != kNullBlock || idle.slot.kept()) return;
    const PrefixNode parent = idle.parent;
    if (parent == kNoPrefix) {  // a root
      roots_.erase(idle.scope);
    } else {
      by_content_.erase(node);
      --nodes_[parent].children;
    }
    nodes_[node] = Node{};
    unused_.push_back(node);
    if (parent == kNoPrefix) return;
    node = parent;
  }
}

}  // namespace flotilla::scheduler
