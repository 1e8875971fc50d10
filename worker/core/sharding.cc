#include "worker/core/sharding.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {
namespace {

absl::Status CheckShape(const ModelParts& parts, ParallelShape shape) {
  if (shape.tensor == 0 || shape.pipeline == 0 || shape.tensor > kMaxRanks ||
      shape.pipeline > kMaxRanks || shape.ranks() > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat("tp ", shape.tensor, " x pp ", shape.pipeline,
                                                   ": a group has 1 to ", kMaxRanks, " ranks"));
  }
  if (shape.pipeline > parts.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("pp ", shape.pipeline, ": the model has ", parts.layers, " layers"));
  }
  std::uint32_t ffn_splits = UINT32_MAX;
  for (const std::uint32_t splits : {parts.ffn_splits, parts.expert_splits, parts.shared_splits}) {
    if (splits > 0) ffn_splits = std::min(ffn_splits, splits);
  }
  const std::uint32_t most = std::min(parts.attention_splits, ffn_splits);
  if (shape.tensor > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("tp ", shape.tensor, ": the model can be cut into ", most, " (",
                     parts.attention_splits, " splits of attention, ", ffn_splits, " FFN splits)"));
  }
  return absl::OkStatus();
}

// Divides `count` items of `bytes` each among ranks that already have `owned` bytes. The quantity
// that `balance` names becomes as even as whole items allow. Every rank gets at least one item, or
// the first ranks do if there are too few.
std::vector<IndexRange> Share(std::uint32_t count, std::uint64_t bytes, ShardBalance balance,
                              std::vector<std::uint64_t>& owned) {
  const std::size_t first = std::min<std::size_t>(count, owned.size());
  std::vector<std::uint32_t> shares(owned.size(), 0);
  for (std::size_t i = 0; i < first; ++i) {
    shares[i] = 1;
    owned[i] += bytes;
  }
  const auto weight = [&](std::size_t i) {
    return std::pair(balance == ShardBalance::kStep ? shares[i] : 0u, owned[i]);
  };
  for (std::size_t left = count - first; left > 0; --left) {
    std::size_t least = 0;
    for (std::size_t i = 1; i < owned.size(); ++i) {
      if (weight(i) < weight(least)) least = i;
    }
    owned[least] += bytes;
    ++shares[least];
  }
  std::vector<IndexRange> ranges;
  std::uint32_t begin = 0;
  for (const std::uint32_t share : shares) {
    ranges.push_back({begin, begin + share});
    begin += share;
  }
  return ranges;
}

// Returns the layers of each stage. The head of the last stage counts like as many layers
// as it weighs. A stage has at least one layer.
std::vector<IndexRange> ShareLayers(const ModelParts& parts, std::uint32_t stages) {
  const std::uint64_t layer = parts.attention_splits * parts.attention_split_bytes +
                              parts.ffn_splits * parts.ffn_split_bytes +
                              parts.expert_splits * parts.expert_split_bytes +
                              parts.shared_splits * parts.shared_split_bytes;
  std::vector<std::uint64_t> owned(stages, 0);
  owned.back() = parts.vocab_chunks * parts.vocab_chunk_bytes;
  return Share(parts.layers, layer, ShardBalance::kBytes, owned);
}

}  // namespace

absl::StatusOr<std::vector<Shard>> PlanShards(const ModelParts& parts, ParallelShape shape,
                                              ShardBalance balance) {
  if (absl::Status status = CheckShape(parts, shape); !status.ok()) return status;
  const std::vector<IndexRange> layers = ShareLayers(parts, shape.pipeline);
  std::vector<Shard> shards;
  for (std::uint32_t stage = 0; stage < shape.pipeline; ++stage) {
    const bool last = stage + 1 == shape.pipeline;
    const std::uint64_t count = layers[stage].size();
    std::vector<std::uint64_t> owned(shape.tensor, 0);
    const auto share = [&](std::uint32_t items, std::uint64_t bytes) {
      return Share(items, bytes, balance, owned);
    };
    const auto attention = share(parts.attention_splits, count * parts.attention_split_bytes);
    const auto ffn = share(parts.ffn_splits, count * parts.ffn_split_bytes);
    const auto experts = share(parts.expert_splits, count * parts.expert_split_bytes);
    const auto shared = share(parts.shared_splits, count * parts.shared_split_bytes);
    const auto vocab = last ? share(parts.vocab_chunks, parts.vocab_chunk_bytes)
                            : std::vector<IndexRange>(shape.tensor);
    for (std::uint32_t t = 0; t < shape.tensor; ++t) {
      shards.push_back({layers[stage], attention[t], ffn[t], vocab[t], experts[t], shared[t]});
    }
  }
  return shards;
}

std::vector<IndexRange> CompleteSubtrees(IndexRange range) {
  std::vector<IndexRange> subtrees;
  for (std::uint32_t begin = range.begin; begin < range.end;) {
    std::uint32_t size = std::bit_floor(range.end - begin);
    if (begin > 0) size = std::min(size, begin & -begin);
    subtrees.push_back({begin, begin + size});
    begin += size;
  }
  return subtrees;
}

TreeProgram MakeTreeProgram(absl::Span<const IndexRange> subtrees) {
  TreeProgram program;
  std::vector<IndexRange> registers;
  const auto merge = [&] {
    const std::uint32_t end = registers.back().end;
    registers.pop_back();
    registers.back().end = end;
    program.steps.push_back({.to = static_cast<std::uint32_t>(registers.size() - 1)});
  };
  for (std::size_t i = 0; i < subtrees.size(); ++i) {
    program.steps.push_back({.load = true,
                             .to = static_cast<std::uint32_t>(registers.size()),
                             .from = static_cast<std::uint32_t>(i)});
    registers.push_back(subtrees[i]);
    program.depth = std::max(program.depth, static_cast<std::uint32_t>(registers.size()));
    while (registers.size() > 1) {
      const IndexRange& right = registers.back();
      const IndexRange& left = registers[registers.size() - 2];
      if (left.size() != right.size() || left.begin % (2 * left.size()) != 0) break;
      merge();
    }
  }
  // The odd ones carry up, the smallest first.
  while (registers.size() > 1) merge();
  return program;
}

std::vector<IndexRange> SubtreesOf(IndexRange splits, std::uint32_t all) {
  if (splits.size() == all) return {splits};
  return CompleteSubtrees(splits);
}

std::vector<TreeProgram> MakeSplitPrograms(IndexRange splits, std::uint32_t all) {
  std::vector<TreeProgram> programs;
  for (const IndexRange& subtree : SubtreesOf(splits, all)) {
    std::vector<IndexRange> leaves;
    for (std::uint32_t i = subtree.begin; i < subtree.end; ++i) leaves.push_back({i, i + 1});
    TreeProgram& program = programs.emplace_back(MakeTreeProgram(leaves));
    for (TreeStep& step : program.steps) {
      if (step.load) step.from += subtree.begin - splits.begin;
    }
  }
  return programs;
}

SumTree MakeSumTree(absl::Span<const IndexRange> splits, std::uint32_t all) {
  SumTree tree;
  std::vector<IndexRange> subtrees;
  for (std::uint32_t rank = 0; rank < splits.size(); ++rank) {
    std::uint32_t place = 0;
    for (const IndexRange& subtree : SubtreesOf(splits[rank], all)) {
      tree.parts.push_back({rank, place++});
      subtrees.push_back(subtree);
    }
  }
  tree.program = MakeTreeProgram(subtrees);
  return tree;
}

}  // namespace flotilla::worker
