// PrefixPath: what the prefix index has of one sequence that is not open, remembered.
//
// The path is the sequence's leading blocks that the index knows. It holds its last node, so no
// node of it is removed. Each block of the sequence is hashed once, when it is found. Later
// updates read the log of the index, so their cost grows with what has changed, and not with the
// length of the prefix. KvCacheManager owns the paths; one thread.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/types/executor.h"
#include "common/types/ids.h"
#include "scheduler/core/block_pool.h"
#include "scheduler/core/prefix_index.h"

namespace flotilla::scheduler {

class PrefixPath {
 public:
  static constexpr std::size_t kMostGroups = 8;

  // All outlive the path. `groups` are those of the index, at most 8, and all of them have blocks
  // of the same number of tokens.
  PrefixPath(PrefixIndex* index, const BlockPool* pool, absl::Span<const KvGroup> groups)
      : index_(index), pool_(pool), groups_(groups) {}
  PrefixPath(const PrefixPath&) = delete;
  PrefixPath& operator=(const PrefixPath&) = delete;
  ~PrefixPath() {
    if (!blocks_.empty()) index_->LetGo(last());
  }

  // Brings the path up to date. `tokens` are those of the sequence's blocks that may be found, and
  // a block has `block_tokens` of them. There may be more or fewer than in the last call, but they
  // begin alike.
  void Update(absl::string_view scope, absl::Span<const TokenId> tokens,
              std::uint32_t block_tokens);

  // The leading blocks of tokens that need not be computed: the pool has all of their blocks that
  // a sequence of this length needs. `loading`: what follows is being read back from a tier.
  std::uint32_t ready() const { return ready_; }
  // The blocks that a sequence of this length needs and that no table names: all, and those in
  // window groups; and those in window groups that one table names, which may count on getting
  // them back when its sequence gives them up.
  std::uint32_t unnamed() const { return unnamed_; }
  std::uint32_t unnamed_in_windows() const { return unnamed_in_windows_; }
  std::uint32_t counted_on() const { return counted_on_; }
  bool loading() const { return loading_; }
  // What the path would have if blocks were read back from tiers.
  struct Longer {
    std::uint32_t blocks = 0;   // leading blocks of tokens; no more than ready(): nothing helps
    std::uint32_t reads = 0;    // KV blocks that would be read
    std::uint32_t unnamed = 0;  // KV blocks that need not be read, and that no table names
    std::vector<std::uint32_t> from_tier;  // [tiers] `reads` by tier
  };
  // Of blocks in one of `tiers` (bit t for tier t). Nothing is read while others are that help.
  // O(path) when `tiers` is not that of the last call.
  const Longer& WithTiers(std::uint32_t tiers);
  // The node of the sequence's block `block`, from 0.
  PrefixNode node(std::uint32_t block) const { return blocks_[block].node; }

  // INTERNAL: the path is not what the index has. O(path): for tests.
  absl::Status Check() const;

 private:
  struct Block {
    PrefixNode node;
    std::uint8_t in_pool;                         // bit g: the pool has the block of group g
    std::uint8_t unnamed;                         // bit g: and no table names it
    std::uint8_t named;                           // bit g: a table names it
    std::uint8_t loading;                         // bit g: it is being read back from a tier
    std::array<std::uint8_t, kMostGroups> tiers;  // [groups] kNoTier: it is in no tier
  };
  static constexpr std::uint8_t kNoTier = 0xff;

  PrefixNode last() const { return blocks_.back().node; }
  Block StateOf(PrefixNode node) const;
  // Reads the changes since the last update. Returns whether the path may go on further than it
  // did, and sets `changed` if any block of the path has changed.
  bool ReadLog(bool& changed);
  // Looks for more blocks after the path. Returns whether there were any.
  bool Extend(absl::string_view scope, absl::Span<const TokenId> tokens,
              std::uint32_t block_tokens);
  // Forgets the blocks after the first `blocks`. Returns whether there were any.
  bool Shorten(std::size_t blocks);
  void Count();
  // The most leading blocks of tokens of which has(block, group) is true for all KV blocks that a
  // sequence of this length needs.
  template <class Has>
  std::uint32_t Reach(Has has) const;
  std::uint32_t Unneeded(std::size_t group, std::uint32_t blocks) const;

  PrefixIndex* const index_;
  const BlockPool* const pool_;
  const absl::Span<const KvGroup> groups_;
  std::vector<Block> blocks_;
  bool looked_up_ = false;
  std::size_t most_ = 0;    // the blocks that may be found, in the last call of Update
  std::uint64_t seen_ = 0;  // changes of the index that the path knows
  std::uint32_t ready_ = 0, unnamed_ = 0, unnamed_in_windows_ = 0, counted_on_ = 0;
  bool loading_ = false;
  std::uint32_t tiers_ = 0;  // of the last call of WithTiers
  Longer longer_;            // its result
};

}  // namespace flotilla::scheduler
