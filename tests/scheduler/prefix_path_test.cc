// A path says what a walk through the index would say, and hashes each block once.
#include "scheduler/core/prefix_path.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace flotilla::scheduler {
namespace {

constexpr std::uint32_t kBlocks = 40;
constexpr std::uint32_t kSize = 4;  // tokens of a block
const std::vector<KvGroup> kGroups = {{.tokens_per_block = kSize}};

// An index of one prompt, whose blocks come and go.
class Prompt {
 public:
  Prompt() : index_(1000), pool_(1001) {
    for (std::uint32_t i = 0; i < kBlocks * kSize; ++i) tokens_.push_back(static_cast<TokenId>(i));
  }

  absl::Span<const TokenId> tokens() const { return tokens_; }
  absl::Span<const TokenId> TokensOf(std::uint32_t block) const {
    return tokens().subspan(block * kSize, kSize);
  }
  PrefixIndex& index() { return index_; }
  BlockPool& pool() { return pool_; }
  void Update(PrefixPath& path) { path.Update("scope", tokens_, kSize); }

  // The nodes of the prompt's leading blocks that the index knows.
  std::vector<PrefixNode> Walk() const {
    std::vector<PrefixNode> nodes;
    PrefixNode at = index_.FindRoot("scope");
    while (at != kNoPrefix && nodes.size() < kBlocks) {
      at = index_.Find(at, TokensOf(static_cast<std::uint32_t>(nodes.size())));
      if (at != kNoPrefix) nodes.push_back(at);
    }
    return nodes;
  }

  // Publishes the prompt's next block. The caller has a reference.
  void Add() {
    const std::vector<PrefixNode> nodes = Walk();
    if (nodes.size() == kBlocks) return;
    const PrefixNode parent = nodes.empty() ? index_.MakeRoot("scope") : nodes.back();
    const BlockId block = pool_.Take();
    index_.Insert(parent, TokensOf(static_cast<std::uint32_t>(nodes.size())), block);
    pool_.Keep(block);
  }

 private:
  PrefixIndex index_;
  BlockPool pool_;
  std::vector<TokenId> tokens_;
};

TEST(PrefixPath, HashesEachBlockOnce) {
  Prompt prompt;
  PrefixPath path(&prompt.index(), &prompt.pool(), kGroups);
  for (std::uint32_t block = 0; block < kBlocks; ++block) prompt.Add();
  const std::uint64_t before = prompt.index().lookups();
  for (int plan = 0; plan < 100; ++plan) prompt.Update(path);
  EXPECT_EQ(path.ready(), kBlocks);
  EXPECT_EQ(prompt.index().lookups() - before, kBlocks);
  // More changes than the log knows.
  const PrefixNode last = path.node(kBlocks - 1);
  for (std::size_t change = 0; change < 2 * PrefixIndex::kLogged; ++change) {
    prompt.index().Log(last);
  }
  prompt.Update(path);
  EXPECT_EQ(path.ready(), kBlocks);
  EXPECT_EQ(prompt.index().lookups() - before, kBlocks);
}

TEST(PrefixPath, AHeldNodeOutlivesItsBlock) {
  Prompt prompt;
  {
    PrefixPath path(&prompt.index(), &prompt.pool(), kGroups);
    for (int block = 0; block < 3; ++block) prompt.Add();
    prompt.Update(path);
    for (const std::uint32_t block : {2u, 1u, 0u}) {
      prompt.index().SetBlock(path.node(block), kNullBlock);
    }
    prompt.Update(path);
    EXPECT_EQ(path.ready(), 0u);
    EXPECT_EQ(path.Check(), absl::OkStatus());
    EXPECT_EQ(prompt.index().Check(), absl::OkStatus());
    EXPECT_EQ(prompt.index().size(), 3u);
  }
  EXPECT_EQ(prompt.index().size(), 0u);
}

void ExpectAsWalked(Prompt& prompt, PrefixPath& path, std::uint32_t tiers) {
  const PrefixIndex& index = prompt.index();
  std::uint32_t ready = 0, unnamed = 0;
  const std::vector<PrefixNode> nodes = prompt.Walk();
  const auto in_pool = [&](std::uint32_t at) { return index.block(nodes[at]) != kNullBlock; };
  for (; ready < nodes.size() && in_pool(ready) && index.loading(nodes[ready]) == 0; ++ready) {
    unnamed += prompt.pool().references(index.block(nodes[ready])) == 0;
  }
  const bool loading = ready < nodes.size() && index.loading(nodes[ready]) != 0;
  std::uint32_t reads = 0, longer = ready;
  for (; !loading && longer < nodes.size(); ++longer) {
    const TierSlot slot = index.slot(nodes[longer]);
    if (in_pool(longer)) continue;
    if (!slot.kept() || (tiers >> slot.tier & 1) == 0) break;
    ++reads;
  }
  ASSERT_EQ(path.ready(), ready);
  ASSERT_EQ(path.unnamed(), unnamed);
  ASSERT_EQ(path.loading(), loading);
  ASSERT_EQ(path.WithTiers(tiers).reads, reads);
  if (reads > 0) {
    ASSERT_EQ(path.WithTiers(tiers).blocks, longer);
  }
}

// Does something at random to a block of the prompt.
void Change(Prompt& prompt, std::minstd_rand& random) {
  PrefixIndex& index = prompt.index();
  BlockPool& pool = prompt.pool();
  const std::vector<PrefixNode> nodes = prompt.Walk();
  if (nodes.empty() || random() % 4 == 0) return prompt.Add();
  const PrefixNode node = nodes[random() % nodes.size()];
  const BlockId block = index.block(node);
  switch (random() % 5) {
    case 0:  // its block is evicted, or it gets one
      if (block == kNullBlock) {
        const BlockId fresh = pool.Take();
        pool.Keep(fresh);
        return index.SetBlock(node, fresh);
      }
      if (index.loading(node) != 0) return;  // a copy has a reference
      if (pool.references(block) > 0) pool.Release(block);
      pool.Drop(block);
      return index.SetBlock(node, kNullBlock);
    case 1:
      return index.SetSlot(node, {.tier = static_cast<std::uint32_t>(random() % 2), .slot = 0});
    case 2:
      return index.SetSlot(node, TierSlot{});
    case 3:
      return index.SetLoading(node, block != kNullBlock && random() % 2 == 0);
    default:
      if (block == kNullBlock) return;
      if (pool.references(block) > 0) {
        pool.Release(block);
      } else {
        pool.Share(block);
      }
      return index.Log(node);
  }
}

TEST(PrefixPath, SaysWhatAWalkSays) {
  for (std::uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    std::minstd_rand random(seed);
    Prompt prompt;
    PrefixPath path(&prompt.index(), &prompt.pool(), kGroups);
    for (int step = 0; step < 300; ++step) {
      for (std::uint32_t changes = random() % 6; changes > 0; --changes) Change(prompt, random);
      // Now and then a path looks so late that the log has forgotten what happened first.
      const std::vector<PrefixNode> nodes = prompt.Walk();
      if (random() % 20 == 0 && !nodes.empty()) {
        for (std::size_t i = 0; i <= PrefixIndex::kLogged; ++i) prompt.index().Log(nodes.back());
      }
      prompt.Update(path);
      ExpectAsWalked(prompt, path, random() % 4);
      if (HasFatalFailure()) return;
      ASSERT_EQ(path.Check(), absl::OkStatus());
    }
  }
}

}  // namespace
}  // namespace flotilla::scheduler
