#include "scheduler/core/prefix_index.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace flotilla::scheduler {

PrefixNode PrefixIndex::NewNode() {
  if (unused_.empty()) {
    nodes_.emplace_back();
    blocks_.resize(nodes_.size() * groups_, kNullBlock);
    slots_.resize(nodes_.size() * groups_);
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
  ++lookups_;
  const auto found = by_content_.find(MakeContent(parent, tokens));
  return found == by_content_.end() ? kNoPrefix : *found;
}

PrefixNode PrefixIndex::Insert(PrefixNode parent, absl::Span<const TokenId> tokens, BlockId block) {
  const PrefixNode node = NewNode();
  nodes_[node] = Node{.parent = parent,
                      .depth = nodes_[parent].depth + 1,
                      .hash = MakeContent(parent, tokens).hash,
                      .tokens = {tokens.begin(), tokens.end()},
                      .scope = {}};
  blocks_[node * groups_] = block;
  ++nodes_[parent].children;
  by_content_.insert(node);
  Log(node);
  return node;
}

void PrefixIndex::SetBlock(PrefixNode node, BlockId block, std::size_t group) {
  blocks_[node * groups_ + group] = block;
  Log(node);
  EraseIfIdle(node);
}

void PrefixIndex::SetSlot(PrefixNode node, TierSlot slot, std::size_t group) {
  slots_[node * groups_ + group] = slot;
  Log(node);
  EraseIfIdle(node);
}

void PrefixIndex::SetLoading(PrefixNode node, bool loading, std::size_t group) {
  const auto bit = static_cast<std::uint8_t>(1u << group);
  std::uint8_t& is = nodes_[node].loading;
  is = static_cast<std::uint8_t>(loading ? is | bit : is & ~bit);
  Log(node);
}

void PrefixIndex::LetGo(PrefixNode node) {
  --nodes_[node].holders;
  EraseIfIdle(node);
}

void PrefixIndex::EraseIfIdle(PrefixNode node) {
  while (true) {
    const Node& idle = nodes_[node];
    if (idle.children > 0 || idle.holders > 0 || IsKept(node)) return;
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

bool PrefixIndex::IsKept(PrefixNode node) const {
  for (std::size_t group = 0; group < groups_; ++group) {
    if (block(node, group) != kNullBlock || slot(node, group).kept()) return true;
  }
  return false;
}

std::size_t PrefixIndex::in_pool() const {
  return blocks_.size() -
         static_cast<std::size_t>(std::count(blocks_.begin(), blocks_.end(), kNullBlock));
}

absl::Status PrefixIndex::Check() const {
  std::vector<std::uint32_t> children(nodes_.size(), 0);
  for (const PrefixNode node : by_content_) ++children[nodes_[node].parent];
  for (PrefixNode at = 0; at < nodes_.size(); ++at) {
    const Node& node = nodes_[at];
    if (node.children != children[at]) {
      return absl::InternalError(absl::StrCat("node ", at, " has a wrong number of children"));
    }
    if (node.depth > 0 && children[at] == 0 && node.holders == 0 && !IsKept(at)) {
      return absl::InternalError(absl::StrCat("nothing keeps node ", at));
    }
  }
  return absl::OkStatus();
}

}  // namespace flotilla::scheduler
