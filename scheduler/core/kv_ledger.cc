#include "scheduler/core/kv_ledger.h"

#include <utility>

namespace flotilla {

KvLedger::KvLedger(std::vector<KvGroup> groups, std::uint32_t block_count)
    : groups_(std::move(groups)), pool_(block_count) {}

std::uint64_t KvLedger::BlocksFor(const KvGroup& group, std::uint64_t positions) const {
  if (group.kind == KvGroup::Kind::kState) return positions > 0 ? 1 : 0;
  return (positions + group.tokens_per_block - 1) / group.tokens_per_block;
}

std::uint64_t KvLedger::BlocksFor(std::uint64_t positions) const {
  std::uint64_t blocks = 0;
  for (const KvGroup& group : groups_) blocks += BlocksFor(group, positions);
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

void KvLedger::Open(Branch& branch, StepPlan& plan) {
  branch.tables.assign(groups_.size(), {});
  digest_.Open(branch.handle, branch.request, branch.index);
  plan.ops.push_back(OpenBranch{
      .branch = branch.handle,
      .request = branch.request,
      .index = branch.index,
      .tokens = branch.tokens,
      .prompt_tokens = branch.prompt_tokens,
      .cached_tokens = 0,
      .sampling = branch.sampling,
      .stop = branch.stop,
      .logprobs = branch.logprobs,
      .cohort = branch.cohort,
      .dependent = false,
  });
}

void KvLedger::Grow(Branch& branch, std::uint32_t positions, StepPlan& plan) {
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    std::vector<BlockId>& table = branch.tables[g];
    const std::uint64_t needs = BlocksFor(groups_[g], positions);
    if (table.size() >= needs) continue;
    GrantBlocks grant{.branch = branch.handle, .group = GroupIndex(g), .blocks = {}};
    while (table.size() < needs) {
      const BlockId block = pool_.Take();
      digest_.AddBlock(branch.handle, GroupIndex(g), static_cast<std::uint32_t>(table.size()),
                       block);
      table.push_back(block);
      grant.blocks.push_back(block);
    }
    plan.ops.push_back(std::move(grant));
  }
}

void KvLedger::Close(Branch& branch) {
  for (std::uint32_t g = 0; g < branch.tables.size(); ++g) {
    const std::vector<BlockId>& table = branch.tables[g];
    for (std::uint32_t at = 0; at < table.size(); ++at) {
      digest_.RemoveBlock(branch.handle, GroupIndex(g), at, table[at]);
      pool_.Release(table[at]);
    }
  }
  branch.tables.clear();
  digest_.Close(branch.handle, branch.request, branch.index);
}

}  // namespace flotilla
