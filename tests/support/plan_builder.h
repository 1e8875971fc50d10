// PlanBuilder: writes step plans by hand, with the digest that a scheduler would
// send. For tests of executors and of worker/core; one epoch, steps in order.
//
//   PlanBuilder plans(epoch);
//   plans.Add(OpenSequence{.sequence = SequenceHandle(0), .tokens = {5, 6}, .prompt_tokens = 2});
//   plans.Grant(SequenceHandle(0), {1});
//   plans.Add(Run{.sequence = SequenceHandle(0), .count = 2, .sample = true});
//   StepPlan plan = plans.Take();
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/types/digest.h"
#include "common/types/plan.h"

namespace flotilla::testing {

class PlanBuilder {
 public:
  // `block_tokens` is the block size of the one KV group; forks need it to share blocks.
  explicit PlanBuilder(Epoch epoch, std::uint32_t block_tokens = 4)
      : block_tokens_(block_tokens), plan_{.epoch = epoch, .step = Step(1)} {}

  // Appends an operation. An operation on a sequence that is not open does not change the
  // digest, so that tests can write wrong plans on purpose.
  void Add(OpenSequence op) {
    sequences_[op.sequence] = {op.request, op.index, {}};
    digest_.Open(op.sequence, op.request, op.index);
    plan_.ops.emplace_back(std::move(op));
  }
  void Add(GrantBlocks op) {
    Append(op.sequence, op.group, op.blocks);
    plan_.ops.emplace_back(std::move(op));
  }
  void Add(ForkSequence op) {
    const Sequence parent = sequences_[op.parent];
    sequences_[op.child] = {parent.request, op.index, {}};
    for (const TokenId token : op.tokens) digest_.AddToken(plan_.step, op.child, token);
    digest_.Open(op.child, parent.request, op.index);
    std::vector<BlockId> blocks;
    const auto table = parent.tables.find(GroupIndex(0));
    if (table != parent.tables.end()) {
      const std::size_t shared = op.length / block_tokens_;
      blocks.assign(table->second.begin(),
                    table->second.begin() + std::min(shared, table->second.size()));
    }
    for (const BlockCopy& copy : op.copies) blocks.push_back(copy.to);
    Append(op.child, GroupIndex(0), blocks);
    plan_.ops.emplace_back(std::move(op));
  }
  void Add(DropSequence op) {
    const auto it = sequences_.find(op.sequence);
    if (it != sequences_.end()) {
      for (const auto& [group, table] : it->second.tables) {
        for (std::uint32_t at = 0; at < table.size(); ++at) {
          if (table[at] != kNullBlock) digest_.RemoveBlock(op.sequence, group, at, table[at]);
        }
      }
      digest_.Close(op.sequence, it->second.request, it->second.index);
      sequences_.erase(it);
    }
    plan_.ops.emplace_back(op);
  }
  void Add(Run op) {
    for (const TokenId token : op.append) digest_.AddToken(plan_.step, op.sequence, token);
    digest_.AddRun(plan_.step, op.sequence, op.count);
    plan_.ops.emplace_back(std::move(op));
  }
  void Add(Defer op) {
    digest_.AddDefer(plan_.step, op.sequence);
    plan_.ops.emplace_back(op);
  }
  void Add(TrimBlocks op) {
    const auto it = sequences_.find(op.sequence);
    if (it != sequences_.end()) {
      std::vector<BlockId>& table = it->second.tables[op.group];
      for (std::uint32_t i = 0; i < op.count && !table.empty(); ++i) {
        const auto at = static_cast<std::uint32_t>(table.size() - 1);
        digest_.RemoveBlock(op.sequence, op.group, at, table.back());
        table.pop_back();
      }
    }
    plan_.ops.emplace_back(op);
  }
  void Add(ReleaseBlocks op) {
    const auto it = sequences_.find(op.sequence);
    if (it != sequences_.end()) {
      std::vector<BlockId>& table = it->second.tables[op.group];
      std::uint32_t left = op.count;
      for (std::uint32_t at = 0; at < table.size() && left > 0; ++at) {
        if (table[at] == kNullBlock) continue;
        digest_.RemoveBlock(op.sequence, op.group, at, std::exchange(table[at], kNullBlock));
        --left;
      }
    }
    plan_.ops.emplace_back(op);
  }
  void Add(Speculate op) {
    digest_.AddSpeculate(plan_.step, op.sequence, op.depth);
    plan_.ops.emplace_back(op);
  }
  void Add(BackgroundCopy op) { plan_.ops.emplace_back(std::move(op)); }
  void Add(LoadAdapter op) { plan_.ops.emplace_back(std::move(op)); }
  void Add(UnloadAdapter op) { plan_.ops.emplace_back(std::move(op)); }

  // The table of a window group begins with `count` entries that no grant names.
  void Skip(SequenceHandle sequence, GroupIndex group, std::uint32_t count) {
    sequences_[sequence].tables[group].resize(count, kNullBlock);
  }

  void Grant(SequenceHandle sequence, std::vector<std::uint32_t> blocks,
             GroupIndex group = GroupIndex(0)) {
    GrantBlocks op{.sequence = sequence, .group = group, .blocks = {}};
    for (std::uint32_t block : blocks) op.blocks.emplace_back(block);
    Add(std::move(op));
  }

  // Returns the plan so far; the next plan starts empty.
  StepPlan Take() {
    plan_.digest = digest_.value();
    StepPlan taken = std::move(plan_);
    plan_ = StepPlan{.epoch = taken.epoch, .step = Step(taken.step.value() + 1)};
    return taken;
  }

 private:
  struct Sequence {
    RequestId request;
    SequenceIndex index;
    std::map<GroupIndex, std::vector<BlockId>> tables;
  };

  void Append(SequenceHandle sequence, GroupIndex group, const std::vector<BlockId>& blocks) {
    const auto it = sequences_.find(sequence);
    if (it == sequences_.end()) return;
    std::vector<BlockId>& table = it->second.tables[group];
    for (BlockId block : blocks) {
      digest_.AddBlock(sequence, group, static_cast<std::uint32_t>(table.size()), block);
      table.push_back(block);
    }
  }

  const std::uint32_t block_tokens_;
  StepPlan plan_;
  PlanDigest digest_;
  std::map<SequenceHandle, Sequence> sequences_;
};

}  // namespace flotilla::testing
