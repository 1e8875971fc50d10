// Shards cover a model exactly once, with similar weights. The sum of all shards is the sum of one
// rank.
#include "worker/core/sharding.h"

#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

namespace flotilla::worker {
namespace {

// Returns the parts of SmolLM2-135M, with the sizes of Q4_1.
ModelParts SmallModel() {
  return {.layers = 30,
          .attention_splits = 3,
          .ffn_splits = 12,
          .vocab_chunks = 48,
          .attention_split_bytes = 184'320,
          .ffn_split_bytes = 138'240,
          .vocab_chunk_bytes = 368'640};
}

std::uint64_t Bytes(const ModelParts& parts, const Shard& shard) {
  return shard.layers.size() * (shard.attention_splits.size() * parts.attention_split_bytes +
                                shard.ffn_splits.size() * parts.ffn_split_bytes) +
         shard.vocab_chunks.size() * parts.vocab_chunk_bytes;
}

TEST(PlanShardsTest, OneRankHasAll) {
  const auto shards = PlanShards(SmallModel(), {});
  ASSERT_TRUE(shards.ok());
  EXPECT_EQ(*shards, std::vector<Shard>({{{0, 30}, {0, 3}, {0, 12}, {0, 48}}}));
}

// Of 3 KV heads the ranks get 2 and 1. They get equal halves of the FFN and of the output head, so
// that they wait no longer than they must.
TEST(PlanShardsTest, EachPartIsCutEvenly) {
  const auto shards = PlanShards(SmallModel(), {.tensor = 2});
  ASSERT_TRUE(shards.ok());
  EXPECT_EQ(*shards, std::vector<Shard>({{{0, 30}, {0, 2}, {0, 6}, {0, 24}},
                                         {{0, 30}, {2, 3}, {6, 12}, {24, 48}}}));
}

// An odd item goes to the rank with fewer bytes. Here it is an FFN split.
TEST(PlanShardsTest, OddItemsBringTheBytesCloser) {
  ModelParts parts = SmallModel();
  parts.ffn_splits = 13;
  const auto shards = PlanShards(parts, {.tensor = 2});
  ASSERT_TRUE(shards.ok());
  EXPECT_EQ((*shards)[0].attention_splits.size(), 2u);
  EXPECT_EQ((*shards)[0].ffn_splits.size(), 6u);
  EXPECT_EQ((*shards)[1].ffn_splits.size(), 7u);
}

// Of 3 KV heads the ranks get 2 and 1, and the rank with fewer heads gets more of the FFN.
TEST(PlanShardsTest, BalancesBytesWhereAsked) {
  const ModelParts parts = SmallModel();
  const auto shards = PlanShards(parts, {.tensor = 2}, ShardBalance::kBytes);
  ASSERT_TRUE(shards.ok());
  ASSERT_EQ(shards->size(), 2u);
  EXPECT_EQ((*shards)[0].attention_splits.size(), 2u);
  EXPECT_EQ((*shards)[1].attention_splits.size(), 1u);
  EXPECT_LT((*shards)[0].ffn_splits.size(), (*shards)[1].ffn_splits.size());
  const double first = static_cast<double>(Bytes(parts, (*shards)[0]));
  const double second = static_cast<double>(Bytes(parts, (*shards)[1]));
  EXPECT_NEAR(first / (first + second), 0.5, 0.005);
}

TEST(PlanShardsTest, StagesCountTheHead) {
  const ModelParts parts = SmallModel();
  const auto shards = PlanShards(parts, {.pipeline = 2});
  ASSERT_TRUE(shards.ok());
  EXPECT_GT((*shards)[0].layers.size(), (*shards)[1].layers.size());
  EXPECT_EQ((*shards)[0].vocab_chunks.size(), 0u);
  EXPECT_EQ((*shards)[1].vocab_chunks.size(), 48u);
  const double first = static_cast<double>(Bytes(parts, (*shards)[0]));
  const double second = static_cast<double>(Bytes(parts, (*shards)[1]));
  EXPECT_NEAR(first / (first + second), 0.5, 0.02);
}

TEST(PlanShardsTest, EveryPartBelongsToOneRank) {
  std::mt19937 random(5);
  const auto draw = [&](std::uint32_t least, std::uint32_t most) {
    return least + static_cast<std::uint32_t>(random() % (most - least + 1));
  };
  for (int round = 0; round < 500; ++round) {
    const ParallelShape shape{draw(1, 6), draw(1, 6)};
    const ModelParts parts{.layers = draw(shape.pipeline, 40),
                           .attention_splits = draw(shape.tensor, 12),
                           .ffn_splits = draw(shape.tensor, 40),
                           .vocab_chunks = draw(1, 40),
                           .attention_split_bytes = draw(1, 1000),
                           .ffn_split_bytes = draw(1, 1000),
                           .vocab_chunk_bytes = draw(1, 1000)};
    SCOPED_TRACE(round);
    const auto balance = round % 2 == 0 ? ShardBalance::kStep : ShardBalance::kBytes;
    const auto shards = PlanShards(parts, shape, balance);
    ASSERT_TRUE(shards.ok()) << shards.status();
    ASSERT_EQ(shards->size(), shape.ranks());
    std::uint32_t layer = 0;
    for (std::uint32_t stage = 0; stage < shape.pipeline; ++stage) {
      std::uint32_t attention = 0, ffn = 0, vocab = 0;
      for (std::uint32_t t = 0; t < shape.tensor; ++t) {
        const Shard& shard = (*shards)[stage * shape.tensor + t];
        EXPECT_EQ(shard.layers.begin, layer);
        EXPECT_EQ(shard.layers, (*shards)[stage * shape.tensor].layers);
        EXPECT_EQ(shard.attention_splits.begin, attention);
        EXPECT_EQ(shard.ffn_splits.begin, ffn);
        EXPECT_EQ(shard.vocab_chunks.begin, vocab);
        EXPECT_GT(shard.attention_splits.size(), 0u);
        EXPECT_GT(shard.ffn_splits.size(), 0u);
        attention = shard.attention_splits.end;
        ffn = shard.ffn_splits.end;
        vocab = shard.vocab_chunks.end;
      }
      EXPECT_EQ(attention, parts.attention_splits);
      EXPECT_EQ(ffn, parts.ffn_splits);
      EXPECT_EQ(vocab, stage + 1 == shape.pipeline ? parts.vocab_chunks : 0);
      layer = (*shards)[stage * shape.tensor].layers.end;
    }
    EXPECT_EQ(layer, parts.layers);
  }
}

TEST(PlanShardsTest, RefusesWhatCannotBeCut) {
  const ModelParts parts = SmallModel();
  EXPECT_EQ(PlanShards(parts, {.tensor = 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(PlanShards(parts, {.tensor = 4}).status().message(),
            "tp 4: the model can be cut into 3 (3 splits of attention, 12 FFN splits)");
  EXPECT_EQ(PlanShards(parts, {.pipeline = 31}).status().message(),
            "pp 31: the model has 30 layers");
  EXPECT_FALSE(PlanShards(parts, {.tensor = 1u << 31, .pipeline = 2}).ok());
}

TEST(PlanShardsTest, ExpertsAndSharedExpertsAreCutTooOrRefused) {
  ModelParts parts = SmallModel();
  parts.attention_splits = 8;
  parts.ffn_splits = 0;  // every layer has experts
  parts.expert_splits = 6;
  EXPECT_TRUE(PlanShards(parts, {.tensor = 6}).ok());
  EXPECT_EQ(PlanShards(parts, {.tensor = 7}).status().message(),
            "tp 7: the model can be cut into 6 (8 splits of attention, 6 FFN splits)");
  parts.shared_splits = 4;
  EXPECT_TRUE(PlanShards(parts, {.tensor = 4}).ok());
  EXPECT_EQ(PlanShards(parts, {.tensor = 5}).status().message(),
            "tp 5: the model can be cut into 4 (8 splits of attention, 4 FFN splits)");
}

// Adds splits in the order of kernels/reference.
float SplitTree(std::vector<float> partials) {
  for (std::size_t stride = 1; stride < partials.size(); stride *= 2) {
    for (std::size_t i = 0; i + stride < partials.size(); i += 2 * stride) {
      partials[i] += partials[i + stride];
    }
  }
  return partials[0];
}

float RunProgram(const TreeProgram& program, const std::vector<float>& sums) {
  std::vector<float> registers(program.depth);
  for (const TreeStep& step : program.steps) {
    if (step.load) {
      registers.at(step.to) = sums.at(step.from);
    } else {
      registers.at(step.to) += registers.at(step.to + 1);
    }
  }
  return registers.at(0);
}

// The sums are equal, bit for bit, for any partition into consecutive splits.
TEST(TreeProgramTest, SumsOfSubtreesAreTheWholeSum) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> value(-1000, 1000);
  for (int round = 0; round < 2000; ++round) {
    const auto splits = static_cast<std::uint32_t>(1 + random() % 256);
    SCOPED_TRACE(splits);
    std::vector<float> partials(splits);
    for (float& partial : partials) partial = value(random);
    std::vector<IndexRange> subtrees;
    std::vector<float> sums;
    for (std::uint32_t begin = 0; begin < splits;) {
      const std::uint32_t end = std::min<std::uint32_t>(
          splits, begin + 1 + static_cast<std::uint32_t>(random() % splits));
      for (const IndexRange& subtree : CompleteSubtrees({begin, end})) {
        EXPECT_EQ(subtree.size() & (subtree.size() - 1), 0u);
        EXPECT_EQ(subtree.begin % subtree.size(), 0u);
        subtrees.push_back(subtree);
        sums.push_back(
            SplitTree({partials.begin() + subtree.begin, partials.begin() + subtree.end}));
      }
      begin = end;
      EXPECT_EQ(subtrees.back().end, end);
    }
    const TreeProgram program = MakeTreeProgram(subtrees);
    EXPECT_LE(program.depth, 10u);
    EXPECT_EQ(RunProgram(program, sums), SplitTree(partials));
  }
}

}  // namespace
}  // namespace flotilla::worker
