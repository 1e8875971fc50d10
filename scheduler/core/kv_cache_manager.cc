#include "scheduler/core/kv_cache_manager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla::scheduler {

namespace {

std::uint64_t SlotsOf(const std::vector<KvTier>& tiers) {
  std::uint64_t slots = 0;
  for (const KvTier& tier : tiers) slots += tier.block_count;
  return slots;
}

std::unique_ptr<PrefixIndex> MakeIndex(const std::vector<KvGroup>& groups,
                                       std::uint32_t block_count, bool prefix_cache,
                                       const std::vector<KvTier>& tiers) {
  if (groups.size() != 1 || groups[0].kind != KvGroup::Kind::kFull) return nullptr;
  if (!prefix_cache && tiers.empty()) return nullptr;
  return std::make_unique<PrefixIndex>(block_count + SlotsOf(tiers));
}

}  // namespace

KvCacheManager::KvCacheManager(std::vector<KvGroup> groups, std::uint32_t block_count,
                               bool prefix_cache, const std::vector<KvTier>& tiers)
    : groups_(std::move(groups)),
      pool_(block_count),
      index_(MakeIndex(groups_, block_count, prefix_cache, tiers)),
      tiers_(tiers, index_.get()) {
  if (index_ != nullptr) node_of_.assign(std::size_t{pool_.total()} + 1, kNoPrefix);
}

std::uint64_t KvCacheManager::BlocksFor(const KvGroup& group, std::uint64_t positions) const {
  if (group.kind == KvGroup::Kind::kState) return positions > 0 ? 1 : 0;
  return (positions + group.tokens_per_block - 1) / group.tokens_per_block;
}

std::uint64_t KvCacheManager::BlocksFor(std::uint64_t positions) const {
  std::uint64_t blocks = 0;
  for (const KvGroup& group : groups_) blocks += BlocksFor(group, positions);
  return blocks;
}

std::uint64_t KvCacheManager::MostBlocksFor(std::uint64_t tokens) const {
  std::uint64_t blocks = 0;
  for (const KvGroup& group : groups_) {
    if (group.kind != KvGroup::Kind::kState) blocks += BlocksFor(group, tokens);
  }
  return blocks;
}

std::uint64_t KvCacheManager::BlocksNeeded(const Sequence& sequence,
                                           std::uint64_t positions) const {
  std::uint64_t needed = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::uint64_t needs = BlocksFor(groups_[g], positions);
    const std::uint64_t has = sequence.tables.empty() ? 0 : sequence.tables[g].size();
    if (needs > has) needed += needs - has;
  }
  return needed;
}

std::uint32_t KvCacheManager::LongestWithin(const Sequence& sequence, std::uint32_t wanted,
                                            std::uint64_t blocks) const {
  if (BlocksNeeded(sequence, wanted) <= blocks) return wanted;
  std::uint32_t can = 0, cannot = wanted;  // more positions never need fewer blocks
  while (cannot - can > 1) {
    const std::uint32_t middle = can + (cannot - can) / 2;
    (BlocksNeeded(sequence, middle) <= blocks ? can : cannot) = middle;
  }
  return can;
}

bool KvCacheManager::can_fork() const {
  return std::none_of(groups_.begin(), groups_.end(),
                      [](const KvGroup& group) { return group.kind == KvGroup::Kind::kState; });
}

std::uint64_t KvCacheManager::BlocksNeededByFork(std::uint32_t length,
                                                 std::uint64_t positions) const {
  std::uint64_t blocks = BlocksFor(positions);
  if (length == 0 || !can_fork()) return blocks;
  for (const KvGroup& group : groups_) blocks -= length / group.tokens_per_block;
  return blocks;
}

std::uint32_t KvCacheManager::ReusableBlocks(const Sequence& sequence) const {
  std::size_t known = sequence.tokens.size();
  // Fatal rows are computed, and a row before them, with which a shared step opens the sequence.
  if (sequence.fatal.any() && sequence.fatal.begin > 0) {
    known = std::min<std::size_t>(known, sequence.fatal.begin);
  }
  return static_cast<std::uint32_t>((known - 1) / groups_[0].tokens_per_block);
}

absl::Span<const TokenId> KvCacheManager::TokensOf(const Sequence& sequence,
                                                   std::uint32_t block) const {
  const std::uint32_t size = groups_[0].tokens_per_block;
  return absl::MakeConstSpan(sequence.tokens).subspan(std::size_t{block} * size, size);
}

// Returns the index node of block number `block` of the sequence, or kNoPrefix. `node` is the
// node of the block before it, or a root for block 0.
PrefixNode KvCacheManager::NodeAfter(PrefixNode node, const Sequence& sequence,
                                     std::uint32_t block) const {
  return node == kNoPrefix ? kNoPrefix : index_->Find(node, TokensOf(sequence, block));
}

KvCacheManager::Match KvCacheManager::FindPrefix(const Sequence& sequence, const Request& request,
                                                 std::int64_t recompute_ns) const {
  Match match;
  if (index_ == nullptr || request.wants_prompt_rows()) return match;
  PrefixNode node = index_->FindRoot(request.cache_scope);
  const std::uint32_t reusable = ReusableBlocks(sequence);
  while (match.blocks < reusable) {
    node = NodeAfter(node, sequence, match.blocks);
    if (node == kNoPrefix || index_->block(node) == kNullBlock) break;
    match.loading = IsLoading(node);
    if (match.loading) return match;
    match.node = node;
    ++match.blocks;
    match.pinned += pool_.references(index_->block(node)) == 0;
  }
  while (node != kNoPrefix && match.blocks + match.in_tiers < reusable) {
    const TierSlot slot = index_->slot(node);
    if (index_->block(node) != kNullBlock || !slot.kept() ||
        !tiers_.WorthLoading(slot.tier, recompute_ns)) {
      break;
    }
    ++match.in_tiers;
    node = NodeAfter(node, sequence, match.blocks + match.in_tiers);
  }
  return match;
}

bool KvCacheManager::WillPublish(const Sequence& other, const Request& others,
                                 const Sequence& sequence, const Request& request,
                                 const Match& match) const {
  const std::uint32_t next = match.blocks;
  if (index_ == nullptr || request.wants_prompt_rows() || next >= ReusableBlocks(sequence) ||
      other.state != SequenceState::kPrefill || other.duplicate || other.indexed_blocks != next ||
      other.indexed != match.node || others.cache_scope != request.cache_scope ||
      std::uint64_t{next + 1} * groups_[0].tokens_per_block > other.prefill_tokens) {
    return false;
  }
  return TokensOf(other, next) == TokensOf(sequence, next);
}

void KvCacheManager::Open(Sequence& sequence, const Request& request, const Match& match,
                          StepPlan& plan) {
  sequence.tables.assign(groups_.size(), {});
  digest_.Open(sequence.handle, request.id, sequence.index);
  sequence.sent_tokens = static_cast<std::uint32_t>(sequence.tokens.size());
  plan.ops.push_back(OpenSequence{
      .sequence = sequence.handle,
      .request = request.id,
      .index = sequence.index,
      .tokens = sequence.tokens,
      .prompt_tokens = request.prompt_tokens,
      .cached_tokens = PositionsOf(match),
      .sampling = request.sampling,
      .stop = request.stop,
      .logprobs = request.logprobs,
      .micro_batch = sequence.micro_batch,
      .is_beam = request.beam != nullptr,
  });
  sequence.shared_blocks = match.blocks;
  if (match.blocks == 0) return;
  GrantBlocks hit{.sequence = sequence.handle, .group = GroupIndex(0), .blocks = BlocksOf(match)};
  for (const BlockId block : hit.blocks) {
    pool_.Share(block);
    AddToTable(sequence, GroupIndex(0), block);
  }
  plan.ops.push_back(std::move(hit));
  sequence.indexed_blocks = match.blocks;
  sequence.indexed = match.node;
  sequence.length.Settle(PositionsOf(match));
}

std::size_t KvCacheManager::Fork(const Sequence& parent, Sequence& sequence, const Request& request,
                                 StepPlan& plan) {
  const std::uint32_t length = sequence.fork.length;
  ForkSequence fork{.parent = parent.handle,
                    .child = sequence.handle,
                    .index = sequence.index,
                    .length = length,
                    .tokens = {sequence.tokens.begin() + length, sequence.tokens.end()},
                    .copies = {},
                    .micro_batch = sequence.micro_batch};
  for (const TokenId token : fork.tokens) digest_.AddToken(plan.step, sequence.handle, token);
  digest_.Open(sequence.handle, request.id, sequence.index);
  sequence.sent_tokens = static_cast<std::uint32_t>(sequence.tokens.size());
  sequence.length.Settle(length);
  sequence.tables.assign(groups_.size(), {});
  sequence.shared_blocks = 0;
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const std::uint32_t shared = length / groups_[g].tokens_per_block;
    for (std::uint32_t at = 0; at < shared; ++at) {
      pool_.Share(parent.tables[g][at]);
      AddToTable(sequence, GroupIndex(g), parent.tables[g][at]);
    }
    sequence.shared_blocks += shared;
    if (length % groups_[g].tokens_per_block == 0) continue;
    fork.copies.push_back({.from = parent.tables[g][shared], .to = TakeBlock()});
    AddToTable(sequence, GroupIndex(g), fork.copies.back().to);
  }
  if (index_ != nullptr) {
    const auto shared = length / groups_[0].tokens_per_block;
    sequence.indexed_blocks = std::min(parent.indexed_blocks, shared);
    sequence.indexed = sequence.indexed_blocks == 0
                           ? kNoPrefix
                           : node_of_[parent.tables[0][sequence.indexed_blocks - 1].value()];
    sequence.duplicate = parent.duplicate && parent.indexed_blocks <= shared;
  }
  const std::size_t copies = fork.copies.size();
  plan.ops.push_back(std::move(fork));
  return copies;
}

void KvCacheManager::AddToTable(Sequence& sequence, GroupIndex group, BlockId block) {
  std::vector<BlockId>& table = sequence.tables[group.value()];
  digest_.AddBlock(sequence.handle, group, static_cast<std::uint32_t>(table.size()), block);
  table.push_back(block);
}

BlockId KvCacheManager::TakeBlock() {
  const BlockId block = pool_.Take();
  if (index_ == nullptr) return block;
  if (const PrefixNode node = std::exchange(node_of_[block.value()], kNoPrefix);
      node != kNoPrefix) {
    evictions_ += !index_->slot(node).kept();
    index_->SetBlock(node, kNullBlock);
  }
  return block;
}

void KvCacheManager::Allocate(Sequence& sequence, std::uint32_t positions, StepPlan& plan) {
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const std::uint64_t needs = BlocksFor(groups_[g], positions);
    if (sequence.tables[g].size() >= needs) continue;
    GrantBlocks grant{.sequence = sequence.handle, .group = GroupIndex(g), .blocks = {}};
    while (sequence.tables[g].size() < needs) {
      grant.blocks.push_back(TakeBlock());
      AddToTable(sequence, GroupIndex(g), grant.blocks.back());
    }
    plan.ops.push_back(std::move(grant));
  }
}

bool KvCacheManager::Trim(Sequence& sequence, StepPlan& plan) {
  bool trimmed = false;
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    std::vector<BlockId>& table = sequence.tables[g];
    const std::uint64_t needs = BlocksFor(groups_[g], sequence.length.scheduled_max);
    if (table.size() <= needs) continue;
    plan.ops.push_back(TrimBlocks{.sequence = sequence.handle,
                                  .group = GroupIndex(g),
                                  .count = static_cast<std::uint32_t>(table.size() - needs)});
    while (table.size() > needs) {
      const auto at = static_cast<std::uint32_t>(table.size() - 1);
      digest_.RemoveBlock(sequence.handle, GroupIndex(g), at, table.back());
      pool_.Release(table.back());
      table.pop_back();
    }
    trimmed = true;
  }
  sequence.length.allocated = sequence.length.scheduled_max;
  return trimmed;
}

void KvCacheManager::Publish(Sequence& sequence, const Request& request, std::uint32_t positions) {
  if (index_ == nullptr || sequence.duplicate) return;
  while (std::uint64_t{sequence.indexed_blocks + 1} * groups_[0].tokens_per_block <= positions) {
    const absl::Span<const TokenId> tokens = TokensOf(sequence, sequence.indexed_blocks);
    const PrefixNode parent =
        sequence.indexed_blocks == 0 ? index_->MakeRoot(request.cache_scope) : sequence.indexed;
    const PrefixNode known = index_->Find(parent, tokens);
    if (known != kNoPrefix && index_->block(known) != kNullBlock) {
      sequence.duplicate = true;
      return;
    }
    const BlockId block = sequence.tables[0][sequence.indexed_blocks];
    if (known == kNoPrefix) {
      sequence.indexed = index_->Insert(parent, tokens, block);
    } else {  // the node has a copy in a tier, or it has children
      index_->SetBlock(known, block);
      sequence.indexed = known;
    }
    node_of_[block.value()] = sequence.indexed;
    pool_.Keep(block);
    ++sequence.indexed_blocks;
  }
}

// Blocks are released from the last to the first, so that the last block of a sequence is
// evicted before the blocks that it follows.
void KvCacheManager::Close(Sequence& sequence, const Request& request) {
  for (std::uint32_t g = 0; g < sequence.tables.size(); ++g) {
    const std::vector<BlockId>& table = sequence.tables[g];
    for (std::uint32_t at = static_cast<std::uint32_t>(table.size()); at-- > 0;) {
      digest_.RemoveBlock(sequence.handle, GroupIndex(g), at, table[at]);
      pool_.Release(table[at]);
    }
  }
  sequence.tables.clear();
  digest_.Close(sequence.handle, request.id, sequence.index);
}

bool KvCacheManager::IsLoading(PrefixNode node) const {
  return loading_.contains(index_->block(node).value());
}

KvCacheManager::CopyInFlight& KvCacheManager::CopyTo(BackgroundCopy::Kind kind,
                                                     std::uint32_t tier) {
  for (const std::uint64_t id : to_send_) {
    CopyInFlight& copy = copies_.at(id);
    if (copy.kind == kind && copy.tier == tier) return copy;
  }
  to_send_.push_back(++last_copy_);
  return copies_
      .emplace(last_copy_, CopyInFlight{.kind = kind, .tier = tier, .moves = {}, .nodes = {}})
      .first->second;
}

KvCacheManager::Stored KvCacheManager::Store(const std::vector<BlockId>& blocks,
                                             std::int64_t recompute_ns) {
  Stored stored;
  bool full = !tiers_.any();
  for (const BlockId block : blocks) {
    if (pool_.references(block) > 0 || !pool_.kept(block)) continue;
    ++stored.able;
    if (full) continue;
    const PrefixNode node = node_of_[block.value()];
    ++stored.kept;
    if (index_->slot(node).kept()) continue;
    const std::optional<TierSlot> slot = tiers_.Take(node, recompute_ns);
    if (!slot.has_value()) {
      --stored.kept;
      full = true;  // the blocks after this one are of no use without it
      continue;
    }
    pool_.Share(block);
    CopyInFlight& copy = CopyTo(BackgroundCopy::Kind::kOut, slot->tier);
    copy.moves.push_back({.block = block, .slot = slot->slot});
    copy.nodes.push_back(node);
    ++stored.begun;
  }
  return stored;
}

void KvCacheManager::Load(const Sequence& sequence, const Request& request, const Match& match) {
  // The blocks of the match must not be evicted to make room for those that follow.
  const std::vector<BlockId> before = BlocksOf(match);
  for (const BlockId block : before) pool_.Share(block);
  PrefixNode node = match.blocks > 0 ? match.node : index_->FindRoot(request.cache_scope);
  for (std::uint32_t i = 0; i < match.in_tiers; ++i) {
    node = NodeAfter(node, sequence, match.blocks + i);
    const TierSlot slot = index_->slot(node);
    tiers_.Pin(slot);  // before TakeBlock, so that the slot is not reused
    const BlockId block = TakeBlock();
    index_->SetBlock(node, block);
    node_of_[block.value()] = node;
    pool_.Keep(block);
    loading_.insert(block.value());
    CopyInFlight& copy = CopyTo(BackgroundCopy::Kind::kIn, slot.tier);
    copy.moves.push_back({.block = block, .slot = slot.slot});
    copy.nodes.push_back(node);
  }
  for (auto block = before.rbegin(); block != before.rend(); ++block) pool_.Release(*block);
}

std::vector<BlockId> KvCacheManager::BlocksOf(const Match& match) const {
  std::vector<BlockId> blocks(match.blocks);
  PrefixNode node = match.node;
  for (std::uint32_t at = match.blocks; at-- > 0; node = index_->parent(node)) {
    blocks[at] = index_->block(node);
  }
  return blocks;
}

void KvCacheManager::EmitCopies(StepPlan& plan) {
  for (const std::uint64_t id : std::exchange(to_send_, {})) {
    const CopyInFlight& copy = copies_.at(id);
    for (const BackgroundCopy::Move& move : copy.moves) {
      digest_.AddCopy(plan.step, id, copy.tier, move.block, move.slot);
    }
    plan.ops.push_back(
        BackgroundCopy{.id = id, .kind = copy.kind, .tier = copy.tier, .moves = copy.moves});
  }
}

bool KvCacheManager::CopyDone(std::uint64_t id) {
  const auto found = copies_.find(id);
  if (found == copies_.end() || std::find(to_send_.begin(), to_send_.end(), id) != to_send_.end()) {
    return false;
  }
  const CopyInFlight copy = std::move(found->second);
  copies_.erase(found);
  for (std::size_t i = 0; i < copy.moves.size(); ++i) {
    const TierSlot slot{.tier = copy.tier, .slot = copy.moves[i].slot};
    if (copy.kind == BackgroundCopy::Kind::kOut) {
      index_->SetSlot(copy.nodes[i], slot);
      pool_.ReleaseAsOldest(copy.moves[i].block);
    } else {
      loading_.erase(copy.moves[i].block.value());
      pool_.Release(copy.moves[i].block);
    }
    tiers_.Unpin(slot);
  }
  return true;
}

std::vector<BlockId> KvCacheManager::CopiedBlocks() const {
  std::vector<BlockId> blocks;
  for (const auto& [id, copy] : copies_) {
    for (const BackgroundCopy::Move& move : copy.moves) blocks.push_back(move.block);
  }
  return blocks;
}

absl::Status KvCacheManager::CheckIndex() const {
  if (index_ == nullptr) return absl::OkStatus();
  if (absl::Status s = tiers_.Check(); !s.ok()) return s;
  std::uint32_t cached = 0;
  std::size_t indexed = 0;
  std::vector<std::uint32_t> children(node_of_.size(), 0);  // by block
  for (std::uint32_t b = 1; b < node_of_.size(); ++b) {
    const BlockId block(b);
    const PrefixNode node = node_of_[b];
    if (pool_.kept(block) != (node != kNoPrefix)) {
      return absl::InternalError(
          absl::StrCat("block ", b, " is kept and not indexed, or indexed and not kept"));
    }
    if (node == kNoPrefix) continue;
    ++indexed;
    if (index_->block(node) != block) {
      return absl::InternalError(absl::StrCat("the node of block ", b, " names another block"));
    }
    cached += pool_.references(block) == 0;
    const BlockId before = index_->block(index_->parent(node));
    ++children[before.value()];
    if (before != kNullBlock && copies_.empty() &&
        pool_.references(before) < pool_.references(block)) {
      return absl::InternalError(
          absl::StrCat("block ", b, " is in more tables than the block before it"));
    }
  }
  if (indexed != index_->size() && !tiers_.any()) {
    return absl::InternalError("a node of the prefix index has no block");
  }
  if (cached != pool_.cached()) {
    return absl::InternalError("pool and prefix index differ in the number of cached blocks");
  }
  for (std::uint32_t b = 1; b < node_of_.size(); ++b) {
    if (node_of_[b] != kNoPrefix && !tiers_.any() && index_->children(node_of_[b]) != children[b]) {
      return absl::InternalError(
          absl::StrCat("the node of block ", b, " has a wrong number of children"));
    }
  }
  return absl::OkStatus();
}

}  // namespace flotilla::scheduler
