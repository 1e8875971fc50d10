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

bool Any(const std::vector<KvGroup>& groups, KvGroup::Kind kind) {
  return std::any_of(groups.begin(), groups.end(),
                     [kind](const KvGroup& group) { return group.kind == kind; });
}

std::int64_t FullGroups(const std::vector<KvGroup>& groups) {
  const auto full = std::count_if(groups.begin(), groups.end(), [](const KvGroup& group) {
    return group.kind == KvGroup::Kind::kFull;
  });
  return full > 0 ? full : std::max<std::int64_t>(static_cast<std::int64_t>(groups.size()), 1);
}

std::unique_ptr<PrefixIndex> MakeIndex(const ExecutorDescription& description, bool prefix_cache) {
  const std::vector<KvGroup>& groups = description.groups;
  const bool alike = std::all_of(groups.begin(), groups.end(), [&](const KvGroup& group) {
    return group.tokens_per_block == groups[0].tokens_per_block;
  });
  if (!alike || Any(groups, KvGroup::Kind::kState) || groups.size() > PrefixPath::kMostGroups) {
    return nullptr;
  }
  if (!prefix_cache && description.tiers.empty()) return nullptr;
  return std::make_unique<PrefixIndex>(description.block_count + SlotsOf(description.tiers),
                                       groups.size());
}

}  // namespace

KvCacheManager::KvCacheManager(const ExecutorDescription& description, bool prefix_cache)
    : groups_(description.groups),
      slack_(RowsOfPlans(description)),
      run_tokens_(description.run_tokens),
      has_windows_(Any(description.groups, KvGroup::Kind::kWindow)),
      full_groups_(FullGroups(description.groups)),
      pool_(description.block_count),
      index_(MakeIndex(description, prefix_cache)),
      tiers_(description.tiers, groups_, index_.get()),
      to_store_(pool_.total()),
      written_now_(pool_.total()) {
  if (index_ == nullptr) return;
  node_of_.assign(std::size_t{pool_.total()} + 1, kNoPrefix);
  group_of_.assign(std::size_t{pool_.total()} + 1, 0);
}

std::uint64_t KvCacheManager::BlocksFor(std::uint64_t positions) const {
  std::uint64_t blocks = 0;
  for (const KvGroup& group : groups_) blocks += MostNamed(group, positions, 0);
  return blocks;
}

KvCacheManager::Growth KvCacheManager::MostGrowth(std::uint64_t tokens) const {
  Growth growth;
  for (const KvGroup& group : groups_) {
    if (group.kind == KvGroup::Kind::kFull) growth.blocks += TableEntries(group, tokens);
    if (group.kind == KvGroup::Kind::kWindow) growth.in_windows += TableEntries(group, tokens);
  }
  return growth;
}

std::uint64_t KvCacheManager::WindowRoom(const Sequence& sequence) const {
  if (!has_windows()) return 0;
  const Holding& holding = Of(sequence);
  std::uint64_t room = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    if (!IsWindow(g)) continue;
    const std::uint64_t most = MostNamed(groups_[g], ~std::uint32_t{0}, 0);
    const std::uint64_t has = holding.tables.empty()
                                  ? MostNamed(groups_[g], sequence.tokens.size(), 0)
                                  : holding.tables[g].size() - holding.fronts[g];
    room += most - std::min(most, has);
  }
  return room;
}

std::uint64_t KvCacheManager::BlocksNeeded(const Sequence& sequence,
                                           std::uint64_t positions) const {
  const auto& tables = TablesOf(sequence);
  std::uint64_t needed = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::uint64_t needs = TableEntries(groups_[g], positions);
    const std::uint64_t has = tables.empty() ? 0 : tables[g].size();
    if (needs > has) needed += needs - has;
  }
  return needed;
}

std::uint64_t KvCacheManager::BlocksToReach(const Sequence& sequence,
                                            std::uint64_t positions) const {
  const Holding& holding = Of(sequence);
  std::uint64_t needed = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::uint64_t has = holding.tables.empty() ? 0 : holding.tables[g].size();
    const std::uint64_t needs = TableEntries(groups_[g], positions);
    std::uint64_t more = needs - std::min(needs, has);
    if (IsWindow(g)) {
      const std::uint64_t most = MostNamed(groups_[g], positions, slack_);
      const std::uint64_t named = has == 0 ? 0 : has - holding.fronts[g];
      more = std::min(more, most - std::min(most, named));
    }
    needed += more;
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

bool KvCacheManager::can_fork() const { return !Any(groups_, KvGroup::Kind::kState); }

std::uint64_t KvCacheManager::BlocksFrom(std::uint32_t length, std::uint64_t positions) const {
  std::uint64_t blocks = 0;
  for (const KvGroup& group : groups_) {
    const std::uint64_t begun = length == 0 || !can_fork() ? 0 : length / group.tokens_per_block;
    const std::uint64_t more = TableEntries(group, positions) - begun;
    blocks += std::min(more, MostNamed(group, positions, slack_));
  }
  return blocks;
}

// What a sequence pins in window groups it gives back when it goes on, so in these it has no more
// than they can name.
std::uint64_t KvCacheManager::BlocksToOpen(const Match& match, std::uint64_t positions) const {
  const std::uint32_t length = PositionsOf(match);
  std::uint64_t blocks = match.pinned - match.pinned_in_windows;
  std::uint64_t in_windows = match.pinned_in_windows, most = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::uint64_t begun = length / std::max(groups_[g].tokens_per_block, 1u);
    const std::uint64_t more = TableEntries(groups_[g], positions) - begun;
    (IsWindow(g) ? in_windows : blocks) += more;
    if (IsWindow(g)) most += MostNamed(groups_[g], positions, slack_);
  }
  return blocks + std::min(in_windows, most);
}

std::uint32_t KvCacheManager::ForkLength(const Sequence& parent, std::uint32_t length) const {
  const std::uint32_t begin = RunBegin(length);
  if (parent.constrained) return begin;  // a row beyond its length may have begun another run
  return parent.length.scheduled_max <= begin + run_tokens_ ? length : begin;
}

bool KvCacheManager::CanFork(const Sequence& parent, std::uint32_t length) const {
  const Holding& holding = Of(parent);
  for (std::size_t g = 0; g < holding.fronts.size(); ++g) {
    if (holding.fronts[g] > groups_[g].UnneededBlocks(length)) return false;
  }
  return can_fork();
}

std::uint32_t KvCacheManager::ReusableBlocks(const Sequence& sequence,
                                             const Request& request) const {
  std::size_t known = sequence.tokens.size();
  // Others fork from it behind its prompt, and need the window before.
  if (has_windows_ && request.width() > 1) {
    known = std::min<std::size_t>(known, request.prompt_tokens);
  }
  // Fatal rows are computed, and a row before them, with which a shared step opens the sequence.
  if (sequence.fatal.any() && sequence.fatal.begin > 0) {
    known = std::min<std::size_t>(known, sequence.fatal.begin);
  }
  return static_cast<std::uint32_t>((known - 1) / block_tokens());
}

absl::Span<const TokenId> KvCacheManager::TokensOf(const Sequence& sequence,
                                                   std::uint32_t block) const {
  const std::uint32_t size = block_tokens();
  return absl::MakeConstSpan(sequence.tokens).subspan(std::size_t{block} * size, size);
}

PrefixPath& KvCacheManager::PathOf(const Sequence& sequence) {
  if (sequence.self >= paths_.size()) paths_.resize(std::size_t{sequence.self} + 1);
  std::unique_ptr<PrefixPath>& path = paths_[sequence.self];
  if (path == nullptr) path = std::make_unique<PrefixPath>(index_.get(), &pool_, groups_);
  return *path;
}

const KvCacheManager::Holding& KvCacheManager::Of(const Sequence& sequence) const {
  static const Holding kNothing;
  return sequence.self < holdings_.size() ? holdings_[sequence.self] : kNothing;
}

KvCacheManager::Holding& KvCacheManager::Hold(const Sequence& sequence, std::uint32_t length) {
  if (sequence.self >= holdings_.size()) holdings_.resize(std::size_t{sequence.self} + 1);
  Holding& holding = holdings_[sequence.self];
  holding.tables.assign(groups_.size(), {});
  holding.fronts.assign(groups_.size(), 0);
  holding.shared.assign(groups_.size(), 0);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    holding.fronts[g] = groups_[g].UnneededBlocks(length);
    holding.tables[g].assign(holding.fronts[g], kNullBlock);
  }
  return holding;
}

std::uint64_t KvCacheManager::OwnBlocks(const Sequence& sequence) const {
  const Holding& holding = Of(sequence);
  std::uint64_t blocks = 0;
  for (std::size_t g = 0; g < holding.tables.size(); ++g) {
    const std::size_t others = std::max(holding.fronts[g], holding.shared[g]);
    blocks += holding.tables[g].size() - std::min(holding.tables[g].size(), others);
  }
  return blocks;
}

std::uint64_t KvCacheManager::SecureBlocks(const std::vector<const Sequence*>& sequences) const {
  std::uint64_t secure = 0;
  std::vector<BlockId> named;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    named.clear();
    for (const Sequence* sequence : sequences) {
      const Holding& holding = Of(*sequence);
      if (holding.tables.empty()) continue;
      named.insert(named.end(), holding.tables[g].begin() + holding.fronts[g],
                   holding.tables[g].end());
    }
    std::sort(named.begin(), named.end());
    for (std::size_t at = 0, next = 0; at < named.size(); at = next) {
      while (next < named.size() && named[next] == named[at]) ++next;
      secure += !IsWindow(g) || pool_.tables(named[at]) == next - at;
    }
  }
  return secure;
}

void KvCacheManager::Forget(const Sequence& sequence) {
  if (sequence.self < paths_.size()) paths_[sequence.self].reset();
}

KvCacheManager::Match KvCacheManager::UpdateMatch(const Sequence& sequence, const Request& request,
                                                  PrefixPath& path) const {
  const std::uint32_t size = block_tokens();
  const std::size_t reusable = std::size_t{ReusableBlocks(sequence, request)} * size;
  path.Update(request.cache_scope, absl::MakeConstSpan(sequence.tokens).first(reusable), size);
  const auto windows = static_cast<std::uint32_t>(
      std::count_if(groups_.begin(), groups_.end(),
                    [](const KvGroup& group) { return group.kind == KvGroup::Kind::kWindow; }));
  return {.node = path.ready() == 0 ? kNoPrefix : path.node(path.ready() - 1),
          .blocks = path.ready(),
          .secure = path.ready() * (static_cast<std::uint32_t>(groups_.size()) - windows),
          .pinned = path.unnamed(),
          .pinned_in_windows = path.unnamed_in_windows(),
          .counted_on = path.counted_on(),
          .loading = path.loading()};
}

KvCacheManager::Match KvCacheManager::FindPrefixAnew(const Sequence& sequence,
                                                     const Request& request) const {
  if (index_ == nullptr || request.wants_prompt_rows()) return {};
  PrefixPath path(index_.get(), &pool_, groups_);
  return UpdateMatch(sequence, request, path);
}

KvCacheManager::Match KvCacheManager::FindPrefix(const Sequence& sequence, const Request& request,
                                                 std::int64_t block_ns) {
  if (index_ == nullptr || request.wants_prompt_rows()) return {};
  PrefixPath& path = PathOf(sequence);
  Match match = UpdateMatch(sequence, request, path);
  const PrefixPath::Longer& longer = path.WithTiers(tiers_.WorthLoading(RecomputeNs(block_ns)));
  if (longer.blocks <= match.blocks) return match;
  // The windows of a short hit can cost more than to compute it.
  std::int64_t read_ns = 0;
  for (std::uint32_t t = 0; t < longer.from_tier.size(); ++t) {
    read_ns += longer.from_tier[t] * CopyNs(BackgroundCopy::Kind::kIn, t);
  }
  if (read_ns >= (longer.blocks - match.blocks) * block_ns) return match;
  match.in_tiers = longer.reads;
  match.longer = longer.blocks;
  match.longer_pinned = longer.unnamed;
  return match;
}

bool KvCacheManager::WillPublish(const Sequence& other, const Request& others,
                                 const Sequence& sequence, const Request& request,
                                 const Match& match) const {
  if (index_ == nullptr || other.state != SequenceState::kPrefill || request.wants_prompt_rows()) {
    return false;
  }
  const std::uint32_t next = match.blocks;
  const Holding& holding = Of(other);
  if (next >= ReusableBlocks(sequence, request) || holding.indexed_blocks != next ||
      holding.indexed != match.node || others.cache_scope != request.cache_scope ||
      std::uint64_t{next + 1} * block_tokens() > other.prefill_tokens) {
    return false;
  }
  return TokensOf(other, next) == TokensOf(sequence, next);
}

void KvCacheManager::Open(Sequence& sequence, const Request& request, const Match& match,
                          StepPlan& plan) {
  Holding& holding = Hold(sequence, PositionsOf(match));
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
  if (match.blocks > 0) {
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      GrantBlocks hit{
          .sequence = sequence.handle, .group = GroupIndex(g), .blocks = BlocksOf(match, g)};
      for (const BlockId block : hit.blocks) {
        Share(block);
        AddToTable(sequence, GroupIndex(g), block);
        const TierSlot slot = index_->slot(node_of_[block.value()], g);
        if (slot.kept()) tiers_.Use(slot);
        if (!IsWindow(g)) WantStored(block);
      }
      holding.shared[g] = match.blocks;
      if (!hit.blocks.empty()) plan.ops.push_back(std::move(hit));
    }
    WantWindows(match.node, match.blocks);
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
  Holding& holding = Hold(sequence, length);
  const Holding& from = Of(parent);
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const std::uint32_t shared = length / groups_[g].tokens_per_block;
    for (std::uint32_t at = holding.fronts[g]; at < shared; ++at) {
      Share(from.tables[g][at]);
      AddToTable(sequence, GroupIndex(g), from.tables[g][at]);
    }
    holding.shared[g] = shared;
    if (length % groups_[g].tokens_per_block == 0) continue;
    fork.copies.push_back({.from = from.tables[g][shared], .to = TakeBlock()});
    AddToTable(sequence, GroupIndex(g), fork.copies.back().to);
  }
  Forget(sequence);
  if (index_ != nullptr) {
    const std::uint32_t shared = length / block_tokens();
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
    const std::uint8_t group = group_of_[block.value()];
    evictions_ += !index_->slot(node, group).kept();
    index_->SetBlock(node, kNullBlock, group);
    to_store_.Remove(block);
    written_now_.Remove(block);
  }
  return block;
}

void KvCacheManager::Allocate(const Sequence& sequence, std::uint32_t positions, StepPlan& plan) {
  const auto& tables = TablesOf(sequence);
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const std::uint64_t needs = TableEntries(groups_[g], positions);
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
    const std::uint64_t needs = TableEntries(groups_[g], sequence.length.scheduled_max);
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

bool KvCacheManager::CanAdopt(PrefixNode node, std::size_t group) const {
  const BlockId block = index_->block(node, group);
  return block == kNullBlock || pool_.cached(block);
}

void KvCacheManager::Adopt(PrefixNode node, std::size_t group, BlockId block) {
  if (const BlockId old = index_->block(node, group); old != kNullBlock) {
    node_of_[old.value()] = kNoPrefix;
    to_store_.Remove(old);
    written_now_.Remove(old);
    pool_.Drop(old);
  }
  index_->SetBlock(node, block, group);
  node_of_[block.value()] = node;
  group_of_[block.value()] = static_cast<std::uint8_t>(group);
  pool_.Keep(block);
  if (!IsWindow(group)) WantStored(block);
}

void KvCacheManager::Publish(const Sequence& sequence, const Request& request,
                             std::uint32_t positions) {
  if (index_ == nullptr) return;
  Holding& holding = holdings_[sequence.self];
  while (std::uint64_t{holding.indexed_blocks + 1} * block_tokens() <= positions) {
    const std::uint32_t at = holding.indexed_blocks;
    const absl::Span<const TokenId> tokens = TokensOf(sequence, at);
    const PrefixNode parent = at == 0 ? index_->MakeRoot(request.cache_scope) : holding.indexed;
    PrefixNode node = index_->Find(parent, tokens);
    if (node == kNoPrefix) node = index_->Insert(parent, tokens, kNullBlock);
    // Until it has a block, the node is held by the sequence only.
    SetIndexed(holding, node, at + 1);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const BlockId block = holding.tables[g][at];
      if (block == kNullBlock) continue;  // it was given back before its tokens were known
      if (CanAdopt(node, g)) {
        Adopt(node, g, block);
      } else {
        with_duplicates_ += !holding.has_duplicates;
        holding.has_duplicates = true;
      }
    }
    if (at + 1 == (request.prompt_tokens - 1) / block_tokens()) WantWindows(node, at + 1);
  }
}

void KvCacheManager::ReleaseFronts(const Sequence& sequence, std::uint32_t before) {
  Holding& holding = holdings_[sequence.self];
  const std::uint32_t length = std::min(sequence.length.computed_min, before);
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const std::uint32_t from = holding.fronts[g], to = groups_[g].UnneededBlocks(length);
    if (to <= from) continue;
    for (std::uint32_t at = from; at < to; ++at) {
      const BlockId block = std::exchange(holding.tables[g][at], kNullBlock);
      digest_.RemoveBlock(sequence.handle, GroupIndex(g), at, block);
      Release(block);
    }
    holding.fronts[g] = to;
    released_.push_back({.sequence = sequence.handle, .group = GroupIndex(g), .count = to - from});
  }
}

void KvCacheManager::EmitReleases(StepPlan& plan) {
  plan.ops.insert(plan.ops.end(), released_.begin(), released_.end());
  released_.clear();
}

// Blocks are released from the last to the first, so that the last block of a sequence is
// evicted before the blocks that it follows. A duplicate takes the place of a block that nobody
// uses any more, so that the blocks after it are still found.
void KvCacheManager::Close(const Sequence& sequence, const Request& request) {
  const Holding holding = std::exchange(holdings_[sequence.self], {});
  std::size_t entries = 0;
  for (const std::vector<BlockId>& table : holding.tables)
    entries = std::max(entries, table.size());
  PrefixNode node = holding.indexed;
  for (auto at = static_cast<std::uint32_t>(entries); at-- > 0;) {
    for (std::uint32_t g = 0; g < holding.tables.size(); ++g) {
      if (at >= holding.tables[g].size() || at < holding.fronts[g]) continue;
      const BlockId block = holding.tables[g][at];
      digest_.RemoveBlock(sequence.handle, GroupIndex(g), at, block);
      if (at < holding.indexed_blocks && node_of_[block.value()] != node && CanAdopt(node, g)) {
        Adopt(node, g, block);
      }
      Release(block);
    }
    if (at < holding.indexed_blocks) node = index_->parent(node);
  }
  digest_.Close(sequence.handle, request.id, sequence.index);
  if (holding.indexed_blocks > 0) {
    WantWindows(holding.indexed, holding.indexed_blocks);
    index_->LetGo(holding.indexed);
  }
  with_duplicates_ -= holding.has_duplicates;
}

void KvCacheManager::Share(BlockId block) {
  pool_.Share(block);
  if (pool_.kept(block) && pool_.references(block) <= MostLogged()) {
    index_->Log(node_of_[block.value()]);
  }
}

void KvCacheManager::Release(BlockId block) {
  pool_.Release(block);
  if (pool_.kept(block) && pool_.references(block) < MostLogged()) {
    index_->Log(node_of_[block.value()]);
  }
}

std::vector<BlockId> KvCacheManager::BlocksOf(const Match& match, std::size_t group) const {
  const std::uint32_t first = groups_[group].UnneededBlocks(PositionsOf(match));
  std::vector<BlockId> blocks(match.blocks - first);
  PrefixNode node = match.node;
  for (std::uint32_t at = match.blocks; at-- > first; node = index_->parent(node)) {
    blocks[at - first] = index_->block(node, group);
  }
  return blocks;
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
    const std::size_t group = group_of_[b];
    if (index_->block(node, group) != block) {
      return absl::InternalError(absl::StrCat("the node of block ", b, " names another block"));
    }
    cached += pool_.references(block) == 0;
    const BlockId before = index_->block(index_->parent(node), group);
    if (!IsWindow(group) && before != kNullBlock && copies_.empty() && with_duplicates_ == 0 &&
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
