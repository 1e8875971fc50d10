// KvLedger: the scheduler's side of the block tables of one epoch.
//
// Grants and releases blocks of the pool, writes the plan operations that tell
// the ranks, and keeps the PlanDigest that both sides must agree on. Made anew
// for each epoch, because a lost group takes its KV memory with it.
#pragma once

#include <cstdint>
#include <vector>

#include "common/types/digest.h"
#include "common/types/executor.h"
#include "common/types/plan.h"
#include "scheduler/core/block_pool.h"
#include "scheduler/core/branch.h"

namespace flotilla {

class KvLedger {
 public:
  // `groups` as described by the executor; block_count includes the null block.
  KvLedger(std::vector<KvGroup> groups, std::uint32_t block_count);

  const BlockPool& pool() const { return pool_; }
  std::size_t group_count() const { return groups_.size(); }
  std::uint64_t digest() const { return digest_.value(); }

  // Blocks of all groups that hold `positions` positions of one branch.
  std::uint64_t BlocksFor(std::uint64_t positions) const;
  // Blocks that `branch` lacks to hold `positions`; 0 if it has them.
  std::uint64_t Lacks(const Branch& branch, std::uint64_t positions) const;
  // The most positions up to `wanted` that `branch` can hold with `blocks` more
  // blocks. At least what it holds now, if that is below `wanted`.
  std::uint32_t Reach(const Branch& branch, std::uint32_t wanted, std::uint64_t blocks) const;

  // Opens `branch` under its handle with empty tables.
  void Open(Branch& branch, StepPlan& plan);
  // Grants what it lacks to hold `positions`; the pool has that many.
  void Grow(Branch& branch, std::uint32_t positions, StepPlan& plan);
  // Takes its blocks back. They may be granted from the next plan on, which
  // must begin with the DropBranch.
  void Close(Branch& branch);
  void AddRun(Step step, BranchHandle branch, std::uint32_t count) {
    digest_.AddRun(step, branch, count);
  }
  void AddSkip(Step step, BranchHandle branch) { digest_.AddSkip(step, branch); }

 private:
  std::uint64_t BlocksFor(const KvGroup& group, std::uint64_t positions) const;

  const std::vector<KvGroup> groups_;
  BlockPool pool_;
  PlanDigest digest_;
};

}  // namespace flotilla
