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
      tiers_(tiers, index_.get()),
      copying_(std::size_t{pool_.total()} + 1, false),
      to_store_(pool_.total()),
      written_now_(pool_.total()) {
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
  const auto& tables = TablesOf(sequence);
  std::uint64_t needed = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::uint64_t needs = BlocksFor(groups_[g], positions);
    const std::uint64_t has = tables.empty() ? 0 : tables[g].size();
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

PrefixPath& KvCacheManager::PathOf(const Sequence& sequence) {
  if (sequence.self >= paths_.size()) paths_.resize(std::size_t{sequence.self} + 1);
  std::unique_ptr<PrefixPath>& path = paths_[sequence.self];
  if (path == nullptr) path = std::make_unique<PrefixPath>(index_.get(), &pool_);
  return *path;
}

const KvCacheManager::Holding& KvCacheManager::Of(const Sequence& sequence) const {
  static const Holding kNothing;
  return sequence.self < holdings_.size() ? holdings_[sequence.self] : kNothing;
}

KvCacheManager::Holding& KvCacheManager::Hold(const Sequence& sequence) {
  if (sequence.self >= holdings_.size()) holdings_.resize(std::size_t{sequence.self} + 1);
  Holding& holding = holdings_[sequence.self];
  holding.tables.assign(groups_.size(), {});
  return holding;
}

std::uint64_t KvCacheManager::OwnBlocks(const Sequence& sequence) const {
  const Holding& holding = Of(sequence);
  std::uint64_t blocks = 0;
  for (const std::vector<BlockId>& table : holding.tables) blocks += table.size();
  return blocks - std::min<std::uint64_t>(blocks, holding.shared);
}

absl::Span<const BlockId> KvCacheManager::IndexedBlocks(const Sequence& sequence) const {
  const Holding& holding = Of(sequence);
  if (holding.indexed_blocks == 0) return {};
  return absl::MakeConstSpan(holding.tables[0]).first(holding.indexed_blocks);
}

void KvCacheManager::Forget(const Sequence& sequence) {
  if (sequence.self < paths_.size()) paths_[sequence.self].reset();
}

KvCacheManager::Match KvCacheManager::FindPrefix(const Sequence& sequence, const Request& request,
                                                 std::int64_t recompute_ns) {
  if (index_ == nullptr || request.wants_prompt_rows()) return {};
  const std::uint32_t size = groups_[0].tokens_per_block;
  const std::size_t reusable = std::size_t{ReusableBlocks(sequence)} * size;
  PrefixPath& path = PathOf(sequence);
  path.Update(request.cache_scope, absl::MakeConstSpan(sequence.tokens).first(reusable), size);
  return {.node = path.ready() == 0 ? kNoPrefix : path.node(path.ready() - 1),
          .blocks = path.ready(),
          .pinned = path.unnamed(),
          .in_tiers = path.InTiers(tiers_.WorthLoading(recompute_ns)),
          .loading = path.loading()};
}

bool KvCacheManager::WillPublish(const Sequence& other, const Request& others,
                                 const Sequence& sequence, const Request& request,
                                 const Match& match) const {
  const std::uint32_t next = match.blocks;
  const Holding& holding = Of(other);
  if (index_ == nullptr || request.wants_prompt_rows() || next >= ReusableBlocks(sequence) ||
      other.state != SequenceState::kPrefill || holding.indexed_blocks != next ||
      holding.indexed != match.node || others.cache_scope != request.cache_scope ||
      std::uint64_t{next + 1} * groups_[0].tokens_per_block > other.prefill_tokens) {
    return false;
  }
  return TokensOf(other, next) == TokensOf(sequence, next);
}

void KvCacheManager::Open(Sequence& sequence, const Request& request, const Match& match,
                          StepPlan& plan) {
  Holding& holding = Hold(sequence);
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
  holding.shared = match.blocks;
  if (match.blocks > 0) {
    GrantBlocks hit{.sequence = sequence.handle, .group = GroupIndex(0), .blocks = BlocksOf(match)};
    for (const BlockId block : hit.blocks) {
      Share(block);
      AddToTable(sequence, GroupIndex(0), block);
      const TierSlot slot = index_->slot(node_of_[block.value()]);
      if (slot.kept()) tiers_.Use(slot);
      WantStored(block);
    }
    plan.ops.push_back(std::move(hit));
    SetIndexed(holding, match.node, match.blocks);
    sequence.length.Settle(PositionsOf(match));
  }
  Forget(sequence);
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
  Holding& holding = Hold(sequence);
  const Holding& from = Of(parent);
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const std::uint32_t shared = length / groups_[g].tokens_per_block;
    for (std::uint32_t at = 0; at < shared; ++at) {
      Share(from.tables[g][at]);
      AddToTable(sequence, GroupIndex(g), from.tables[g][at]);
    }
    holding.shared += shared;
    if (length % groups_[g].tokens_per_block == 0) continue;
    fork.copies.push_back({.from = from.tables[g][shared], .to = TakeBlock()});
    AddToTable(sequence, GroupIndex(g), fork.copies.back().to);
  }
  Forget(sequence);
  if (index_ != nullptr) {
    const std::uint32_t shared = length / groups_[0].tokens_per_block;
    PrefixNode node = from.indexed;
    for (std::uint32_t at = from.indexed_blocks; at > shared; --at) node = index_->parent(node);
    const std::uint32_t indexed = std::min(from.indexed_blocks, shared);
    if (indexed > 0) SetIndexed(holding, node, indexed);
    holding.has_duplicates = from.has_duplicates;
    with_duplicates_ += holding.has_duplicates;
  }
  const std::size_t copies = fork.copies.size();
  plan.ops.push_back(std::move(fork));
  return copies;
}

void KvCacheManager::AddToTable(const Sequence& sequence, GroupIndex group, BlockId block) {
  std::vector<BlockId>& table = holdings_[sequence.self].tables[group.value()];
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
    to_store_.Remove(block);
    written_now_.Remove(block);
  }
  return block;
}

void KvCacheManager::Allocate(const Sequence& sequence, std::uint32_t positions, StepPlan& plan) {
  const auto& tables = TablesOf(sequence);
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const std::uint64_t needs = BlocksFor(groups_[g], positions);
    if (tables[g].size() >= needs) continue;
    GrantBlocks grant{.sequence = sequence.handle, .group = GroupIndex(g), .blocks = {}};
    while (tables[g].size() < needs) {
      grant.blocks.push_back(TakeBlock());
      AddToTable(sequence, GroupIndex(g), grant.blocks.back());
    }
    plan.ops.push_back(std::move(grant));
  }
}

bool KvCacheManager::Trim(Sequence& sequence, StepPlan& plan) {
  bool trimmed = false;
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    std::vector<BlockId>& table = holdings_[sequence.self].tables[g];
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

void KvCacheManager::SetIndexed(Holding& holding, PrefixNode node, std::uint32_t blocks) {
  index_->Hold(node);
  if (holding.indexed_blocks > 0) index_->LetGo(holding.indexed);
  holding.indexed = node;
  holding.indexed_blocks = blocks;
}

void KvCacheManager::WantStored(BlockId block) {
  if (tiers_.any() && !index_->slot(node_of_[block.value()]).kept()) written_now_.Add(block);
}

bool KvCacheManager::CanAdopt(PrefixNode node) const {
  return index_->block(node) == kNullBlock || pool_.cached(index_->block(node));
}

void KvCacheManager::Adopt(PrefixNode node, BlockId block) {
  if (const BlockId old = index_->block(node); old != kNullBlock) {
    node_of_[old.value()] = kNoPrefix;
    to_store_.Remove(old);
    written_now_.Remove(old);
    pool_.Drop(old);
  }
  index_->SetBlock(node, block);
  node_of_[block.value()] = node;
  pool_.Keep(block);
  WantStored(block);
}

void KvCacheManager::Publish(const Sequence& sequence, const Request& request,
                             std::uint32_t positions) {
  if (index_ == nullptr) return;
  Holding& holding = holdings_[sequence.self];
  while (std::uint64_t{holding.indexed_blocks + 1} * groups_[0].tokens_per_block <= positions) {
    const std::uint32_t at = holding.indexed_blocks;
    const absl::Span<const TokenId> tokens = TokensOf(sequence, at);
    const PrefixNode parent = at == 0 ? index_->MakeRoot(request.cache_scope) : holding.indexed;
    const BlockId block = holding.tables[0][at];
    PrefixNode node = index_->Find(parent, tokens);
    if (node == kNoPrefix) {
      node = index_->Insert(parent, tokens, kNullBlock);
      Adopt(node, block);
    } else if (CanAdopt(node)) {
      Adopt(node, block);
    } else {
      with_duplicates_ += !holding.has_duplicates;
      holding.has_duplicates = true;
    }
    SetIndexed(holding, node, at + 1);
  }
}

// Blocks are released from the last to the first, so that the last block of a sequence is
// evicted before the blocks that it follows. A duplicate takes the place of a block that nobody
// uses any more, so that the blocks after it are still found.
void KvCacheManager::Close(const Sequence& sequence, const Request& request) {
  const Holding holding = std::exchange(holdings_[sequence.self], {});
  for (std::uint32_t g = 0; g < holding.tables.size(); ++g) {
    const std::vector<BlockId>& table = holding.tables[g];
    PrefixNode node = holding.indexed;
    for (std::uint32_t at = static_cast<std::uint32_t>(table.size()); at-- > 0;) {
      digest_.RemoveBlock(sequence.handle, GroupIndex(g), at, table[at]);
      if (g == 0 && at < holding.indexed_blocks) {
        const bool duplicate = node_of_[table[at].value()] != node;
        if (duplicate && CanAdopt(node)) Adopt(node, table[at]);
        node = index_->parent(node);
      }
      Release(table[at]);
    }
  }
  digest_.Close(sequence.handle, request.id, sequence.index);
  if (holding.indexed_blocks > 0) index_->LetGo(holding.indexed);
  with_duplicates_ -= holding.has_duplicates;
}

void KvCacheManager::Share(BlockId block) {
  pool_.Share(block);
  if (pool_.references(block) == 1 && pool_.kept(block)) index_->Log(node_of_[block.value()]);
}

void KvCacheManager::Release(BlockId block) {
  pool_.Release(block);
  if (pool_.cached(block)) index_->Log(node_of_[block.value()]);
}

std::int64_t KvCacheManager::CopyNs(BackgroundCopy::Kind kind, std::uint32_t tier) const {
  const KvTier& t = tiers_.tier(tier);
  return kind == BackgroundCopy::Kind::kOut ? t.out_ns_per_block : t.in_ns_per_block;
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

void KvCacheManager::BeginCopyOut(PrefixNode node, TierSlot slot) {
  const BlockId block = index_->block(node);
  Share(block);
  copying_[block.value()] = true;
  CopyInFlight& copy = CopyTo(BackgroundCopy::Kind::kOut, slot.tier);
  copy.moves.push_back({.block = block, .slot = slot.slot});
  copy.nodes.push_back(node);
  copies_ns_ += CopyNs(copy.kind, slot.tier);
  ++copies_out_;
}

KvCacheManager::Stored KvCacheManager::Store(const std::vector<BlockId>& blocks,
                                             std::int64_t recompute_ns) {
  Stored stored;
  bool full = !tiers_.any();
  for (const BlockId block : blocks) {
    if (!pool_.kept(block)) continue;
    const bool unnamed = Unnamed(block);
    stored.able += unnamed;
    if (full) continue;
    const PrefixNode node = node_of_[block.value()];
    if (!index_->slot(node).kept()) {
      const std::optional<TierSlot> slot =
          tiers_.Take(node, KvTiers::Cost::kWriteAndReadBack, recompute_ns);
      full = !slot.has_value();
      if (full) continue;
      BeginCopyOut(node, *slot);
      ++stored.begun;
    }
    stored.kept += unnamed;
  }
  return stored;
}

KvCacheManager::StoredAhead KvCacheManager::StoreAhead(const StoreLimits& limits) {
  constexpr std::uint32_t kLeast = 2;  // blocks under way, so that a slow link is never idle
  StoredAhead stored;
  const std::uint32_t quarter = pool_.total() / 4;
  if (!tiers_.any() || pool_.free() > pool_.total() - quarter) return stored;
  std::int64_t begun_ns = 0;
  const std::int64_t step_ns = std::max<std::int64_t>(limits.step_ns, 1);
  const auto paced = [&] { return begun_ns >= step_ns || copies_ns_ / step_ns >= limits.steps; };
  while (!to_store_.empty() && copies_out_ < std::max(quarter, 1u)) {
    if (copies_out_ >= kLeast && paced()) break;
    const BlockId block = to_store_.front();
    const bool unnamed = Unnamed(block);
    if (unnamed && stored.unnamed >= limits.spare) break;
    to_store_.Remove(block);
    const PrefixNode node = node_of_[block.value()];
    if (index_->slot(node).kept()) continue;
    const std::optional<TierSlot> slot =
        tiers_.Take(node, KvTiers::Cost::kReadBack, limits.recompute_ns);
    if (!slot.has_value()) continue;
    BeginCopyOut(node, *slot);
    begun_ns += CopyNs(BackgroundCopy::Kind::kOut, slot->tier);
    ++stored.begun;
    stored.unnamed += unnamed;
  }
  return stored;
}

void KvCacheManager::Load(const Sequence& sequence, const Match& match) {
  // The blocks of the match must not be evicted to make room for those that follow.
  const std::vector<BlockId> before = BlocksOf(match);
  for (const BlockId block : before) Share(block);
  const PrefixPath& path = PathOf(sequence);
  for (std::uint32_t i = 0; i < match.in_tiers; ++i) {
    const PrefixNode node = path.node(match.blocks + i);
    const TierSlot slot = index_->slot(node);
    tiers_.Pin(slot);
    const BlockId block = TakeBlock();
    index_->SetBlock(node, block);
    node_of_[block.value()] = node;
    pool_.Keep(block);
    index_->SetLoading(node, true);
    copying_[block.value()] = true;
    CopyInFlight& copy = CopyTo(BackgroundCopy::Kind::kIn, slot.tier);
    copy.moves.push_back({.block = block, .slot = slot.slot});
    copy.nodes.push_back(node);
    copies_ns_ += CopyNs(copy.kind, slot.tier);
  }
  for (auto block = before.rbegin(); block != before.rend(); ++block) Release(*block);
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
  // A copy that starts with the next plan sees what this plan writes.
  while (!written_now_.empty()) {
    const BlockId block = written_now_.front();
    written_now_.Remove(block);
    to_store_.Add(block);
  }
}

bool KvCacheManager::CopyDone(std::uint64_t id) {
  const auto found = copies_.find(id);
  if (found == copies_.end() || std::find(to_send_.begin(), to_send_.end(), id) != to_send_.end()) {
    return false;
  }
  const CopyInFlight copy = std::move(found->second);
  copies_.erase(found);
  const bool out = copy.kind == BackgroundCopy::Kind::kOut;
  copies_out_ -= out ? static_cast<std::uint32_t>(copy.moves.size()) : 0;
  for (std::size_t i = 0; i < copy.moves.size(); ++i) {
    const TierSlot slot{.tier = copy.tier, .slot = copy.moves[i].slot};
    const PrefixNode node = copy.nodes[i];
    copies_ns_ -= CopyNs(copy.kind, copy.tier);
    if (!out) index_->SetLoading(node, false);
    copying_[copy.moves[i].block.value()] = false;
    pool_.ReleaseBefore(copy.moves[i].block, index_->block(index_->parent(node)));
    index_->Log(node);
    tiers_.Unpin(slot);
    tiers_.Use(slot);
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

std::uint32_t KvCacheManager::HeldByCopies() const {
  std::uint32_t held = 0;
  for (const auto& [id, copy] : copies_) {
    for (const BackgroundCopy::Move& move : copy.moves) held += Unnamed(move.block);
  }
  return held;
}

absl::Status KvCacheManager::CheckIndex() const {
  if (index_ == nullptr) return absl::OkStatus();
  if (absl::Status s = tiers_.Check(); !s.ok()) return s;
  if (absl::Status s = index_->Check(); !s.ok()) return s;
  for (const auto& path : paths_) {
    if (absl::Status s = path == nullptr ? absl::OkStatus() : path->Check(); !s.ok()) return s;
  }
  std::uint32_t cached = 0;
  std::size_t indexed = 0;
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
    if (before != kNullBlock && copies_.empty() && with_duplicates_ == 0 &&
        pool_.references(before) < pool_.references(block)) {
      return absl::InternalError(
          absl::StrCat("block ", b, " is in more tables than the block before it"));
    }
  }
  if (indexed != index_->in_pool()) {
    return absl::InternalError("a node of the prefix index names a block that is not its own");
  }
  if (cached != pool_.cached()) {
    return absl::InternalError("pool and prefix index differ in the number of cached blocks");
  }
  return absl::OkStatus();
}

}  // namespace flotilla::scheduler
