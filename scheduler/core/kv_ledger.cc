#include "scheduler/core/kv_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla {

KvLedger::KvLedger(std::vector<KvGroup> groups, std::uint32_t block_count, bool prefix_cache)
    : groups_(std::move(groups)), pool_(block_count) {
  if (!prefix_cache || groups_.size() != 1 || groups_[0].kind != KvGroup::Kind::kFull) return;
  index_ = std::make_unique<PrefixIndex>(pool_.total());
  node_of_.assign(std::size_t{pool_.total()} + 1, kNoPrefix);
}

std::uint64_t KvLedger::BlocksFor(const KvGroup& group, std::uint64_t positions) const {
  if (group.kind == KvGroup::Kind::kState) return positions > 0 ? 1 : 0;
  return (positions + group.tokens_per_block - 1) / group.tokens_per_block;
}

std::uint64_t KvLedger::BlocksFor(std::uint64_t positions) const {
  std::uint64_t blocks = 0;
  for (const KvGroup& group : groups_) blocks += BlocksFor(group, positions);
  return blocks;
}

std::uint64_t KvLedger::GrowthBlocks(std::uint64_t tokens) const {
  std::uint64_t blocks = 0;
  for (const KvGroup& group : groups_) {
    if (group.kind != KvGroup::Kind::kState) blocks += BlocksFor(group, tokens);
  }
  return blocks;
}

std::uint64_t KvLedger::Lacks(const Branch& branch, std::uint64_t positions) const {
  std::uint64_t lacks = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::uint64_t needs = BlocksFor(groups_[g], positions);
    const std::uint64_t has = branch.tables.empty() ? 0 : branch.tables[g].size();
    if (needs > has) lacks += needs - has;
  }
  return lacks;
}

std::uint32_t KvLedger::Reach(const Branch& branch, std::uint32_t wanted,
                              std::uint64_t blocks) const {
  if (Lacks(branch, wanted) <= blocks) return wanted;
  std::uint32_t can = 0, cannot = wanted;  // Lacks grows with positions
  while (cannot - can > 1) {
    const std::uint32_t middle = can + (cannot - can) / 2;
    (Lacks(branch, middle) <= blocks ? can : cannot) = middle;
  }
  return can;
}

bool KvLedger::can_fork() const {
  return std::none_of(groups_.begin(), groups_.end(),
                      [](const KvGroup& group) { return group.kind == KvGroup::Kind::kState; });
}

std::uint64_t KvLedger::ForkNeeds(std::uint32_t length, std::uint64_t positions) const {
  std::uint64_t blocks = BlocksFor(positions);
  if (length == 0 || !can_fork()) return blocks;
  for (const KvGroup& group : groups_) blocks -= length / group.tokens_per_block;
  return blocks;
}

std::uint32_t KvLedger::ReusableBlocks(const Branch& branch) const {
  return static_cast<std::uint32_t>((branch.tokens.size() - 1) / groups_[0].tokens_per_block);
}

absl::Span<const TokenId> KvLedger::TokensOf(const Branch& branch, std::uint32_t block) const {
  const std::uint32_t size = groups_[0].tokens_per_block;
  return absl::MakeConstSpan(branch.tokens).subspan(std::size_t{block} * size, size);
}

KvLedger::Match KvLedger::FindPrefix(const Branch& branch, const Request& request) const {
  Match match;
  if (index_ == nullptr || request.wants_prompt_rows()) return match;
  PrefixNode node = index_->FindRoot(request.cache_scope);
  while (node != kNoPrefix && match.blocks < ReusableBlocks(branch)) {
    node = index_->Find(node, TokensOf(branch, match.blocks));
    if (node == kNoPrefix) break;
    match.node = node;
    ++match.blocks;
    match.pinned += pool_.references(index_->block(node)) == 0;
  }
  return match;
}

bool KvLedger::WillPublish(const Branch& other, const Request& others, const Branch& branch,
                           const Request& request, const Match& match) const {
  const std::uint32_t next = match.blocks;
  if (index_ == nullptr || request.wants_prompt_rows() || next >= ReusableBlocks(branch) ||
      other.state != BranchState::kPrefill || other.duplicate || other.indexed_blocks != next ||
      other.indexed != match.node || others.cache_scope != request.cache_scope ||
      std::uint64_t{next + 1} * groups_[0].tokens_per_block > other.prefill_tokens) {
    return false;
  }
  return TokensOf(other, next) == TokensOf(branch, next);
}

void KvLedger::Open(Branch& branch, const Request& request, const Match& match, StepPlan& plan) {
  branch.tables.assign(groups_.size(), {});
  digest_.Open(branch.handle, request.id, branch.index);
  branch.told_tokens = static_cast<std::uint32_t>(branch.tokens.size());
  plan.ops.push_back(OpenBranch{
      .branch = branch.handle,
      .request = request.id,
      .index = branch.index,
      .tokens = branch.tokens,
      .prompt_tokens = request.prompt_tokens,
      .cached_tokens = PositionsOf(match),
      .sampling = request.sampling,
      .stop = request.stop,
      .logprobs = request.logprobs,
      .cohort = branch.cohort,
      .dependent = request.beam != nullptr,
  });
  branch.shared_blocks = match.blocks;
  if (match.blocks == 0) return;
  GrantBlocks hit{.branch = branch.handle, .group = GroupIndex(0), .blocks = {}};
  hit.blocks.resize(match.blocks);
  PrefixNode node = match.node;
  for (std::uint32_t at = match.blocks; at-- > 0; node = index_->parent(node)) {
    hit.blocks[at] = index_->block(node);
  }
  for (const BlockId block : hit.blocks) {
    pool_.Share(block);
    AddToTable(branch, GroupIndex(0), block);
  }
  plan.ops.push_back(std::move(hit));
  branch.indexed_blocks = match.blocks;
  branch.indexed = match.node;
  branch.length.lower = branch.length.upper = PositionsOf(match);
}

std::size_t KvLedger::Fork(const Branch& parent, Branch& branch, const Request& request,
                           StepPlan& plan) {
  const std::uint32_t length = branch.fork.length;
  ForkBranch fork{.parent = parent.handle,
                  .child = branch.handle,
                  .index = branch.index,
                  .length = length,
                  .tokens = {branch.tokens.begin() + length, branch.tokens.end()},
                  .copies = {},
                  .cohort = branch.cohort};
  for (const TokenId token : fork.tokens) digest_.AddToken(plan.step, branch.handle, token);
  digest_.Open(branch.handle, request.id, branch.index);
  branch.told_tokens = static_cast<std::uint32_t>(branch.tokens.size());
  branch.length.lower = branch.length.upper = length;
  branch.tables.assign(groups_.size(), {});
  branch.shared_blocks = 0;
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const std::uint32_t shared = length / groups_[g].tokens_per_block;
    for (std::uint32_t at = 0; at < shared; ++at) {
      pool_.Share(parent.tables[g][at]);
      AddToTable(branch, GroupIndex(g), parent.tables[g][at]);
    }
    branch.shared_blocks += shared;
    if (length % groups_[g].tokens_per_block == 0) continue;
    fork.copies.push_back({.from = parent.tables[g][shared], .to = TakeBlock()});
    AddToTable(branch, GroupIndex(g), fork.copies.back().to);
  }
  if (index_ != nullptr) {
    const auto shared = length / groups_[0].tokens_per_block;
    branch.indexed_blocks = std::min(parent.indexed_blocks, shared);
    branch.indexed = branch.indexed_blocks == 0
                         ? kNoPrefix
                         : node_of_[parent.tables[0][branch.indexed_blocks - 1].value()];
    branch.duplicate = parent.duplicate && parent.indexed_blocks <= shared;
  }
  const std::size_t copies = fork.copies.size();
  plan.ops.push_back(std::move(fork));
  return copies;
}

void KvLedger::AddToTable(Branch& branch, GroupIndex group, BlockId block) {
  std::vector<BlockId>& table = branch.tables[group.value()];
  digest_.AddBlock(branch.handle, group, static_cast<std::uint32_t>(table.size()), block);
  table.push_back(block);
}

BlockId KvLedger::TakeBlock() {
  const BlockId block = pool_.Take();
  if (index_ == nullptr) return block;
  if (PrefixNode& node = node_of_[block.value()]; node != kNoPrefix) {
    index_->Erase(std::exchange(node, kNoPrefix));
    ++evictions_;
  }
  return block;
}

void KvLedger::Grow(Branch& branch, std::uint32_t positions, StepPlan& plan) {
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const std::uint64_t needs = BlocksFor(groups_[g], positions);
    if (branch.tables[g].size() >= needs) continue;
    GrantBlocks grant{.branch = branch.handle, .group = GroupIndex(g), .blocks = {}};
    while (branch.tables[g].size() < needs) {
      grant.blocks.push_back(TakeBlock());
      AddToTable(branch, GroupIndex(g), grant.blocks.back());
    }
    plan.ops.push_back(std::move(grant));
  }
}

void KvLedger::Publish(Branch& branch, const Request& request, std::uint32_t positions) {
  if (index_ == nullptr || branch.duplicate) return;
  while (std::uint64_t{branch.indexed_blocks + 1} * groups_[0].tokens_per_block <= positions) {
    const absl::Span<const TokenId> tokens = TokensOf(branch, branch.indexed_blocks);
    const PrefixNode parent =
        branch.indexed_blocks == 0 ? index_->MakeRoot(request.cache_scope) : branch.indexed;
    if (index_->Find(parent, tokens) != kNoPrefix) {
      branch.duplicate = true;
      return;
    }
    const BlockId block = branch.tables[0][branch.indexed_blocks];
    branch.indexed = index_->Insert(parent, tokens, block);
    node_of_[block.value()] = branch.indexed;
    pool_.Keep(block);
    ++branch.indexed_blocks;
  }
}

// Last blocks first: a block is released before the one that it follows, so
// the oldest cached block never has a cached block after it.
void KvLedger::Close(Branch& branch, const Request& request) {
  for (std::uint32_t g = 0; g < branch.tables.size(); ++g) {
    const std::vector<BlockId>& table = branch.tables[g];
    for (std::uint32_t at = static_cast<std::uint32_t>(table.size()); at-- > 0;) {
      digest_.RemoveBlock(branch.handle, GroupIndex(g), at, table[at]);
      pool_.Release(table[at]);
    }
  }
  branch.tables.clear();
  digest_.Close(branch.handle, request.id, branch.index);
}

absl::Status KvLedger::CheckIndex() const {
  if (index_ == nullptr) return absl::OkStatus();
  std::uint32_t cached = 0;
  std::size_t indexed = 0;
  std::vector<std::uint32_t> children(node_of_.size(), 0);  // by block
  for (std::uint32_t b = 1; b < node_of_.size(); ++b) {
    const BlockId block(b);
    const PrefixNode node = node_of_[b];
    if (pool_.kept(block) != (node != kNoPrefix)) {
      return absl::InternalError(absl::StrCat("block ", b, " is kept and not indexed, or not"));
    }
    if (node == kNoPrefix) continue;
    ++indexed;
    if (index_->block(node) != block) return absl::InternalError("a node of another block");
    cached += pool_.references(block) == 0;
    const BlockId before = index_->block(index_->parent(node));
    ++children[before.value()];
    if (before != kNullBlock && pool_.references(before) < pool_.references(block)) {
      return absl::InternalError("a block is in more tables than the one before it");
    }
  }
  if (indexed != index_->size()) return absl::InternalError("a node without a block");
  if (cached != pool_.cached()) return absl::InternalError("cached blocks");
  for (std::uint32_t b = 1; b < node_of_.size(); ++b) {
    if (node_of_[b] != kNoPrefix && index_->children(node_of_[b]) != children[b]) {
      return absl::InternalError("children of a node");
    }
  }
  return absl::OkStatus();
}

}  // namespace flotilla
