// KvCacheManager: the scheduler's side of the block tables of one epoch.
//
// It grants and releases blocks of the pool, writes the plan operations that inform
// the ranks, and keeps the PlanDigest that both sides must agree on. Each epoch has a
// new one, because a lost group takes its KV memory with it.
//
// It also keeps the prefix cache: full blocks are published under their content and
// found again by sequences that begin with it. A block is published when the plan
// that fills it is made (ranks run plans in order, and write the K and V of a
// plan before they read any), or when the result that brings its tokens is
// applied. A block with the content of one that is in the cache already is a duplicate: it is
// not published, and the blocks after it are. The prefix cache is for models without state groups
// whose groups have blocks of the same number of tokens.
//
// In a window group a sequence gives blocks back while it grows (ReleaseFronts). As long as
// sequences of its request are not open, it keeps those that a fork behind the prompt needs.
//
// Blocks that are published or found are also listed to be copied to a tier, those before others
// first. Of window groups these are only the last windows of prompts, of hits and of sequences that
// close: few hits end elsewhere. Copies take the link to the tiers no longer than StoreAhead says.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/types/digest.h"
#include "common/types/executor.h"
#include "common/types/kv_needs.h"
#include "common/types/plan.h"
#include "scheduler/core/block_list.h"
#include "scheduler/core/block_pool.h"
#include "scheduler/core/kv_tiers.h"
#include "scheduler/core/prefix_index.h"
#include "scheduler/core/prefix_path.h"
#include "scheduler/core/request.h"
#include "scheduler/core/sequence.h"

namespace flotilla::scheduler {

class KvCacheManager {
 public:
  // Groups, pool and tiers as described by the executor. Tiers are used through the prefix index,
  // so only where it can be.
  KvCacheManager(const ExecutorDescription& description, bool prefix_cache);

  const BlockPool& pool() const { return pool_; }
  // [groups] The block tables of a sequence, entries in order. Empty while it is not open. Leading
  // entries of window groups are kNullBlock when the blocks were given back.
  const std::vector<std::vector<BlockId>>& TablesOf(const Sequence& sequence) const {
    return Of(sequence).tables;
  }
  // The blocks in its tables, less those that it shared when it was opened.
  std::uint64_t OwnBlocks(const Sequence& sequence) const;
  // The blocks that the sequences of a request have for good, each counted once: all in groups that
  // keep every position, and in window groups those that no other request shares. Others may go on
  // to use the latter when this request has given them back.
  std::uint64_t SecureBlocks(const std::vector<const Sequence*>& sequences) const;
  // The blocks of its longest hit, in the order in which Store takes them: none if a window group
  // lacks one, or if there are no tiers.
  std::vector<BlockId> BlocksToStore(const Sequence& sequence) const;
  // What it takes to compute a block of one group, if `block_ns` computes a block of tokens.
  std::int64_t RecomputeNs(std::int64_t block_ns) const { return block_ns / full_groups_; }
  std::size_t group_count() const { return groups_.size(); }
  std::uint64_t digest() const { return digest_.value(); }

  // The blocks that a sequence of `positions` positions has when it decodes.
  std::uint64_t BlocksFor(std::uint64_t positions) const;
  // What a sequence grows by for `tokens` more tokens at most: in groups that keep every position,
  // and in window groups. The latter grow by WindowRoom at most.
  struct Growth {
    std::uint64_t blocks = 0, in_windows = 0;
  };
  Growth MostGrowth(std::uint64_t tokens) const;
  // The blocks by which the window groups of a sequence can still grow.
  std::uint64_t WindowRoom(const Sequence& sequence) const;
  // The blocks that `sequence` needs, in addition to those that it has, to hold
  // `positions` after the next plan.
  std::uint64_t BlocksNeeded(const Sequence& sequence, std::uint64_t positions) const;
  // The same if several plans may lead there: the most that it needs at a time.
  std::uint64_t BlocksToReach(const Sequence& sequence, std::uint64_t positions) const;
  // The most positions up to `wanted` that `sequence` can hold with `blocks` more
  // blocks. At least what it holds now, if that is below `wanted`.
  std::uint32_t LongestWithin(const Sequence& sequence, std::uint32_t wanted,
                              std::uint64_t blocks) const;

  // The blocks that the prefix cache has for a sequence that is not open.
  struct Match {
    PrefixNode node = kNoPrefix;  // of the last block of tokens
    std::uint32_t blocks = 0;     // leading blocks of tokens that need not be computed
    std::uint32_t secure = 0;     // the KV blocks that a hit shares in groups that keep all
    std::uint32_t pinned = 0;     // the KV blocks of a hit that no table names, in all groups,
    std::uint32_t pinned_in_windows = 0;  // and in window groups
    // Blocks in window groups that a table names: its request may count on getting them back.
    std::uint32_t counted_on = 0;
    // Either blocks in tiers would make the hit longer and are worth reading back, or
    // blocks that are being read back now will.
    std::uint32_t in_tiers = 0;       // KV blocks to read
    std::uint32_t longer = 0;         // leading blocks of tokens then
    std::uint32_t longer_pinned = 0;  // KV blocks of that hit in the pool that no table names
    bool loading = false;

    // The KV blocks that the hit shares with others' tables, in groups that keep all.
    std::uint32_t shared() const { return secure - (pinned - pinned_in_windows); }
  };

  // Whether a sequence can be forked at any earlier position. It cannot where a group
  // keeps one record per sequence, because that is the record of its last position.
  bool can_fork() const;
  // The most blocks of its own that a sequence needs at a time to hold `positions`, of which it
  // begins with `length`, those of a fork or of a hit.
  std::uint64_t BlocksFrom(std::uint32_t length, std::uint64_t positions) const;
  // The same for a sequence that begins with `match`, and makes its blocks unavailable.
  std::uint64_t BlocksToOpen(const Match& match, std::uint64_t positions) const;
  // `length`, or the begin of the run that it lies in (ExecutorDescription::run_tokens).
  std::uint32_t RunBegin(std::uint32_t length) const {
    return run_tokens_ == 0 ? length : length / run_tokens_ * run_tokens_;
  }
  // The positions, of `length`, that a fork of `parent`, which is open, can begin with: all of
  // them, or those before a run that it has left or may leave by the plans sent.
  std::uint32_t ForkLength(const Sequence& parent, std::uint32_t length) const;
  bool has_runs() const { return run_tokens_ > 0; }
  // Whether `parent`, which is open, has the blocks that a fork at `length` needs.
  bool CanFork(const Sequence& parent, std::uint32_t length) const;

  // `block_ns`: the time to compute a block of tokens. What is found is remembered, so to ask again
  // costs as much as has changed since, until the sequence is opened or forgotten. Its tokens must
  // not change before.
  Match FindPrefix(const Sequence& sequence, const Request& request, std::int64_t block_ns = 0);
  // The same without what is remembered, and without tiers. O(tokens): for tests.
  Match FindPrefixAnew(const Sequence& sequence, const Request& request) const;
  // Forgets what FindPrefix remembers of a sequence. Must be called before the sequence is erased.
  void Forget(const Sequence& sequence);
  // Whether `other`, which is in prefill, will publish the block after `match`. Then it
  // is better for `sequence` to wait for that block than to compute it again.
  bool WillPublish(const Sequence& other, const Request& others, const Sequence& sequence,
                   const Request& request, const Match& match) const;
  std::uint32_t PositionsOf(const Match& match) const {
    return match.blocks == 0 ? 0 : match.blocks * block_tokens();
  }

  // Opens `sequence` under its handle. Its tables begin with the blocks of `match`, and
  // its length is that of `match`.
  void Open(Sequence& sequence, const Request& request, const Match& match, StepPlan& plan);
  // Opens `sequence` as a fork of `parent` at its fork.length. Earlier plans have written
  // those positions. Full blocks are shared; a partly full block is copied to a block of
  // the sequence's own. Returns the number of copies.
  std::size_t Fork(const Sequence& parent, Sequence& sequence, const Request& request,
                   StepPlan& plan);
  // Grants the blocks that `sequence` needs to hold `positions`. The pool must have them.
  void Allocate(const Sequence& sequence, std::uint32_t positions, StepPlan& plan);
  // Takes back at once the blocks that `sequence` has beyond scheduled_max, for draft
  // tokens that were wrong. The sequence must have no run in this plan yet, and no other
  // plan may be outstanding. Returns whether it took any block.
  bool Trim(Sequence& sequence, StepPlan& plan);
  // Takes back the blocks of window groups that no row of `sequence` after those sent needs, and at
  // most those that one of length `before` does not need. They may be granted again from the next
  // plan on, which must begin with EmitReleases.
  void ReleaseFronts(const Sequence& sequence, std::uint32_t before);
  void EmitReleases(StepPlan& plan);
  // Whether any group gives blocks back in this way.
  bool has_windows() const { return has_windows_; }
  // Takes the blocks of `sequence` back. They may be granted again from the next plan on,
  // which must begin with the DropSequence.
  void Close(const Sequence& sequence, const Request& request);
  // Publishes the full blocks of `sequence` below `positions`, so that FindPrefix finds
  // them. Their tokens are known, and their K and V are written once the plans sent have
  // run.
  void Publish(const Sequence& sequence, const Request& request, std::uint32_t positions);
  // Begins to copy to tiers those of the published `blocks` (BlocksToStore) that are in no tier. It
  // stops where no tier is worth it or has room: a block is of no use without those before it. A
  // block that is being copied is not available.
  struct Stored {
    std::uint32_t able = 0;   // of the blocks that no table names: those that a tier could keep
    std::uint32_t kept = 0;   // of these: those that a tier keeps, or will when the copy is done
    std::uint32_t begun = 0;  // copies begun
  };
  Stored Store(const std::vector<BlockId>& blocks, std::int64_t block_ns);
  // Begins to copy blocks to tiers before they are evicted, in the order in which they were
  // published. It begins when three quarters of the pool or less are free. The limits:
  struct StoreLimits {
    std::int64_t step_ns = 0;   // the time of this step; copies that begin in it take no longer
    std::uint32_t steps = 0;    // all that are under way take no longer than so many steps
    std::uint64_t spare = 0;    // the blocks that no table names and that may be copied
    std::int64_t block_ns = 0;  // the time to compute a block of tokens
  };
  struct StoredAhead {
    std::uint32_t begun = 0;    // copies begun
    std::uint32_t unnamed = 0;  // of blocks that no table names, which are not available now
  };
  StoredAhead StoreAhead(const StoreLimits& limits);
  // Begins to read back for `sequence` the match.in_tiers blocks of `match`, which FindPrefix has
  // just found. The pool must have as many blocks beside match.longer_pinned. They are cached once
  // the copies are done.
  void Load(const Sequence& sequence, const Match& match);
  // The number of blocks that no table names and that are not available until a copy is done.
  std::uint32_t HeldByCopies() const;
  // Whether there are copies that no plan has sent to the workers yet, and whether there
  // are copies that are not reported done.
  bool copies_to_send() const { return !to_send_.empty(); }
  bool copies_pending() const { return !copies_.empty(); }
  void EmitCopies(StepPlan& plan);
  // Records that a copy has ended. False: there is no such copy.
  bool CopyDone(std::uint64_t id);
  const KvTiers& tiers() const { return tiers_; }
  // The blocks that copies name, once for each copy.
  std::vector<BlockId> CopiedBlocks() const;

  // The number of cached blocks that were evicted since the last call and are in no tier.
  std::uint32_t TakeEvictions() { return std::exchange(evictions_, 0); }
  // INTERNAL: the prefix index and the pool disagree. O(pool): for tests.
  absl::Status CheckIndex() const;
  void AddRun(Step step, const Run& run) {
    for (const TokenId token : run.append) digest_.AddToken(step, run.sequence, token);
    digest_.AddRun(step, run.sequence, run.count);
  }
  void AddDefer(Step step, SequenceHandle sequence) { digest_.AddDefer(step, sequence); }
  void AddSpeculate(Step step, const Speculate& op) {
    digest_.AddSpeculate(step, op.sequence, op.depth);
  }

 private:
  struct CopyInFlight {
    BackgroundCopy::Kind kind;
    std::uint32_t tier;
    std::vector<BackgroundCopy::Move> moves;
    std::vector<PrefixNode> nodes;     // of the moves
    std::vector<std::uint8_t> groups;  // the same
  };
  CopyInFlight& CopyTo(BackgroundCopy::Kind kind, std::uint32_t tier);
  std::int64_t CopyNs(BackgroundCopy::Kind kind, std::uint32_t tier) const;
  void BeginCopy(BackgroundCopy::Kind kind, BlockId block, TierSlot slot);
  void BeginCopyOut(BlockId block, TierSlot slot);
  bool InTier(BlockId block) const {
    return index_->slot(node_of_[block.value()], group_of_[block.value()]).kept();
  }
  PrefixPath& PathOf(const Sequence& sequence);
  // Brings the path up to date, and returns what the pool has of it.
  Match UpdateMatch(const Sequence& sequence, const Request& request, PrefixPath& path) const;
  // What an open sequence holds.
  struct Holding {
    std::vector<std::vector<BlockId>> tables;  // [groups]
    std::vector<std::uint32_t> fronts;         // [groups] leading entries without a block
    std::vector<std::uint32_t> shared;         // [groups] leading entries shared when it was opened
    // The number of its leading blocks whose content is in the prefix index, and the node of the
    // last one, which the sequence holds.
    std::uint32_t indexed_blocks = 0;
    PrefixNode indexed = kNoPrefix;
    // Some of these blocks may not be those that the index names: when they were filled, it had
    // others with the same content.
    bool has_duplicates = false;
  };
  const Holding& Of(const Sequence& sequence) const;
  // Begins a holding of a sequence that starts at `length`: entries without a block for what it
  // does not need. References to others are invalid from then on.
  Holding& Hold(const Sequence& sequence, std::uint32_t length);
  // Sets the node of the last published block.
  void SetIndexed(Holding& holding, PrefixNode node, std::uint32_t blocks);
  // Publishes `block` under `node`. A cached block that the node had becomes free.
  void Adopt(PrefixNode node, std::size_t group, BlockId block);
  // Whether the node has no block, or one that no table and no copy names.
  bool CanAdopt(PrefixNode node, std::size_t group) const;
  // Lists the published block to be copied to a tier if it is in none.
  void WantStored(BlockId block);
  // The same for the window groups' blocks of a hit that ends with `node`, the last one of
  // `blocks`.
  void WantWindows(PrefixNode node, std::uint32_t blocks);
  // A change of a block's references is of interest to paths up to this number.
  std::uint32_t MostLogged() const { return has_windows_ ? 2 : 1; }
  void Share(BlockId block);
  void Release(BlockId block);
  // Whether no table names the block. A copy may.
  bool Unnamed(BlockId block) const { return pool_.tables(block) == 0; }
  // The blocks of a match that a group needs, in order.
  std::vector<BlockId> BlocksOf(const Match& match, std::size_t group) const;

  void AddToTable(const Sequence& sequence, GroupIndex group, BlockId block);
  BlockId TakeBlock();
  // The number of blocks of `sequence` that a hit may cover. The block of its last token is never
  // one of them.
  std::uint32_t ReusableBlocks(const Sequence& sequence, const Request& request) const;
  absl::Span<const TokenId> TokensOf(const Sequence& sequence, std::uint32_t block) const;

  bool IsWindow(std::size_t group) const { return groups_[group].kind == KvGroup::Kind::kWindow; }
  // The size of a block of tokens in the prefix index.
  std::uint32_t block_tokens() const { return groups_[0].tokens_per_block; }

  const std::vector<KvGroup> groups_;
  const std::uint32_t slack_;  // RowsOfPlans
  const std::uint32_t run_tokens_;
  const bool has_windows_;
  const std::int64_t full_groups_;  // groups that keep every position, or all groups if none does
  BlockPool pool_;
  PlanDigest digest_;
  // Null: no prefix cache.
  std::unique_ptr<PrefixIndex> index_;
  KvTiers tiers_;
  std::uint32_t evictions_ = 0;
  std::uint64_t last_copy_ = 0;
  std::map<std::uint64_t, CopyInFlight> copies_;  // by id
  std::vector<std::uint64_t> to_send_;            // ids of them
  std::int64_t copies_ns_ = 0;                    // the time that the link needs for all copies
  std::uint32_t copies_out_ = 0;                  // blocks that are being copied to tiers
  std::vector<PrefixNode> node_of_;               // [total + 1] by block; set for kept blocks
  std::vector<std::uint8_t> group_of_;            // the same; the group of the block
  std::vector<ReleaseBlocks> released_;           // to be sent with the next plan
  // Blocks to be copied to tiers: those that the workers have written, and those that the plan in
  // the making writes.
  BlockList to_store_, written_now_;
  std::uint32_t with_duplicates_ = 0;               // open sequences
  std::vector<Holding> holdings_;                   // by Sequence::self
  std::vector<std::unique_ptr<PrefixPath>> paths_;  // the same; of those not open
};

}  // namespace flotilla::scheduler
