// PrefixIndex: finds where the KV of a whole block of tokens after a known prefix
// is kept: for each KV group, in a block of the pool, in a slot of a tier, or in both.
//
// The index is a forest. A node stands for one full block of tokens, and its parent for those
// before it. A root is a cache scope (tenant and salt), so two scopes never share a node. A node
// is found by its parent and its own tokens. The tokens are compared, so a hit is exact by
// induction and never relies on a hash alone. The hash of a block is computed once, when
// the block is published; absl's hash is salted per process. A node that is kept nowhere
// stays while it has children, because they are found through it, and while it is held. The
// index also logs which nodes have changed, so that what was found once need not be looked up
// again (PrefixPaths). KvCacheManager owns the index for one epoch; one thread. The index does
// not count the tables that name a block.
#pragma once

#include <cstdint>
#include <string>

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/types/ids.h"

namespace flotilla::scheduler {

// A node of a PrefixIndex. It is valid from Insert until SetBlock or SetSlot removes it;
// then it is reused.
using PrefixNode = std::uint32_t;
inline constexpr PrefixNode kNoPrefix = ~PrefixNode{0};

// A place in a tier of KV memory.
struct TierSlot {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::uint32_t tier = kNone;
  std::uint32_t slot = 0;

  bool kept() const { return tier != kNone; }
  bool operator==(const TierSlot&) const = default;
};

class PrefixIndex {
 public:
  // Of models with `groups` KV groups, at most 8. The index does not allocate in the middle of a
  // plan while it has at most `nodes` nodes.
  explicit PrefixIndex(std::size_t nodes, std::size_t groups = 1)
      : groups_(groups), by_content_(nodes, Hash{this}, Equal{this}), log_(kLogged) {
    nodes_.reserve(nodes + nodes / 8);  // and roots
    blocks_.reserve((nodes + nodes / 8) * groups);
    slots_.reserve((nodes + nodes / 8) * groups);
  }
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // The root of a scope; kNoPrefix: the index has nothing of that scope.
  PrefixNode FindRoot(absl::string_view scope) const;
  // The root of a scope, which is made if there is none. It is removed with its last child.
  PrefixNode MakeRoot(absl::string_view scope);

  // The block of `tokens` after `parent`, or kNoPrefix.
  PrefixNode Find(PrefixNode parent, absl::Span<const TokenId> tokens) const;
  // Adds a node: `block`, of group 0, holds (or will hold, once the plans sent have run) the KV of
  // `tokens` after `parent`. The index must not have that node yet.
  PrefixNode Insert(PrefixNode parent, absl::Span<const TokenId> tokens, BlockId block);
  // Set where a node is kept, or that it is not kept there (kNullBlock, TierSlot{}). A
  // node that is kept nowhere and has no children is removed. That may also remove the
  // nodes before it.
  void SetBlock(PrefixNode node, BlockId block, std::size_t group = 0);
  void SetSlot(PrefixNode node, TierSlot slot, std::size_t group = 0);
  // Sets whether the block of a group is being read back from a tier.
  void SetLoading(PrefixNode node, bool loading, std::size_t group = 0);
  // A node that is held is not removed. LetGo must be called as often as Hold; it removes the
  // node if nothing keeps it any more.
  void Hold(PrefixNode node) { ++nodes_[node].holders; }
  void LetGo(PrefixNode node);

  // kNullBlock: that group has none.
  BlockId block(PrefixNode node, std::size_t group = 0) const {
    return blocks_[node * groups_ + group];
  }
  std::size_t groups() const { return groups_; }
  TierSlot slot(PrefixNode node, std::size_t group = 0) const {
    return slots_[node * groups_ + group];
  }
  // Bit g: the block of group g is being read back from a tier.
  std::uint8_t loading(PrefixNode node) const { return nodes_[node].loading; }
  // kNoPrefix: the node is a root.
  PrefixNode parent(PrefixNode node) const { return nodes_[node].parent; }
  // The number of the node's block in its sequence, from 1; 0: it is a root or not in use.
  std::uint32_t depth(PrefixNode node) const { return nodes_[node].depth; }
  std::uint32_t children(PrefixNode node) const { return nodes_[node].children; }
  // The number of nodes that are not roots.
  std::size_t size() const { return by_content_.size(); }

  // The number of changes so far, and the node of change number `change`. Only the last kLogged
  // changes are known. A node in the log may have been removed since.
  static constexpr std::size_t kLogged = 4096;
  std::uint64_t changes() const { return changes_; }
  PrefixNode Changed(std::uint64_t change) const { return log_[change % kLogged]; }
  // Logs that something else about the node has changed: whether a table names its block.
  void Log(PrefixNode node) { log_[changes_++ % kLogged] = node; }
  // The number of blocks whose content was hashed to be found. For tests.
  std::uint64_t lookups() const { return lookups_; }

  // The number of blocks that nodes name. O(nodes): for tests.
  std::size_t in_pool() const;
  // INTERNAL: the counts of a node are wrong, or nothing keeps it. O(nodes): for tests.
  absl::Status Check() const;

 private:
  struct Node {
    PrefixNode parent = kNoPrefix;
    std::uint32_t depth = 0;
    std::uint32_t children = 0;
    std::uint32_t holders = 0;
    std::uint8_t loading = 0;
    std::size_t hash = 0;
    std::vector<TokenId> tokens;
    std::string scope;  // roots only
  };
  struct Content {
    PrefixNode parent;
    absl::Span<const TokenId> tokens;
    std::size_t hash;
  };
  struct Hash {
    using is_transparent = void;
    const PrefixIndex* index;
    std::size_t operator()(PrefixNode node) const { return index->nodes_[node].hash; }
    std::size_t operator()(const Content& content) const { return content.hash; }
  };
  struct Equal {
    using is_transparent = void;
    const PrefixIndex* index;
    bool operator()(PrefixNode a, PrefixNode b) const { return a == b; }
    bool operator()(PrefixNode a, const Content& b) const {
      const Node& node = index->nodes_[a];
      return node.parent == b.parent && absl::MakeConstSpan(node.tokens) == b.tokens;
    }
    bool operator()(const Content& a, PrefixNode b) const { return (*this)(b, a); }
  };

  static Content MakeContent(PrefixNode parent, absl::Span<const TokenId> tokens) {
    return {parent, tokens, absl::HashOf(parent, tokens)};
  }
  PrefixNode NewNode();
  // Whether any group has a block or a slot.
  bool IsKept(PrefixNode node) const;
  void EraseIfIdle(PrefixNode node);

  const std::size_t groups_;
  std::vector<Node> nodes_;
  std::vector<BlockId> blocks_;  // [nodes, groups]; always null for a root
  std::vector<TierSlot> slots_;  // the same
  std::vector<PrefixNode> unused_;
  absl::flat_hash_set<PrefixNode, Hash, Equal> by_content_;
  absl::flat_hash_map<std::string, PrefixNode> roots_;
  std::vector<PrefixNode> log_;  // [kLogged] by change, modulo its size
  std::uint64_t changes_ = 0;
  mutable std::uint64_t lookups_ = 0;
};

}  // namespace flotilla::scheduler
