// How a model is cut into the shards of a worker group's ranks, and how the partial
// sums of shards become the sum that one rank would have made. Pure functions.
//
// A group has `pipeline` stages of `tensor` ranks; rank r is number r % tensor of
// stage r / tensor. A stage owns consecutive layers. Each rank of a stage owns
// consecutive splits of each row-parallel product (kernels/packed_matrix.h): whole KV
// head groups of attention, whole FFN splits, and chunks of the vocabulary. Shares may be
// uneven.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace flotilla::worker {

// Half open.
struct IndexRange {
  std::uint32_t begin = 0, end = 0;

  std::uint32_t size() const { return end - begin; }
  bool operator==(const IndexRange&) const = default;
};

struct ParallelShape {
  std::uint32_t tensor = 1;    // ranks that share each layer
  std::uint32_t pipeline = 1;  // stages of consecutive layers

  std::uint32_t ranks() const { return tensor * pipeline; }
  bool operator==(const ParallelShape&) const = default;
};

// What sharding balances between the ranks of a stage. The ranks meet after each layer's
// attention and after its FFN, and wait there for the one with the largest share.
enum class ShardBalance : std::uint8_t {
  // Balances each part by itself, so that the waits are short. This gives the fastest
  // step. Items that cannot be cut evenly go where they bring the sums of bytes closest.
  kStep,
  // Balances the sum of each rank's bytes, for when memory is short. If 2 ranks get 2 and 1 of 3 KV
  // heads, the rank with one head gets more of the FFN.
  kBytes,
};

// The divisible parts of a model, and the bytes of each.
struct ModelParts {
  std::uint32_t layers = 0;
  std::uint32_t attention_splits = 0;  // of a layer
  std::uint32_t ffn_splits = 0;        // of a layer; 0: all have experts
  std::uint32_t vocab_chunks = 0;      // of the head
  std::uint64_t attention_split_bytes = 0;
  std::uint64_t ffn_split_bytes = 0;
  std::uint64_t vocab_chunk_bytes = 0;
  // Of the experts of a layer together, and of its shared expert; 0: there are none. Bytes are
  // those of the mean layer, and so are those of the FFN.
  std::uint32_t expert_splits = 0;
  std::uint32_t shared_splits = 0;
  std::uint64_t expert_split_bytes = 0;
  std::uint64_t shared_split_bytes = 0;

  bool operator==(const ModelParts&) const = default;
};

// The part of the model that one rank owns.
struct Shard {
  IndexRange layers;
  IndexRange attention_splits;
  IndexRange ffn_splits;
  IndexRange vocab_chunks;  // empty but on the last stage; there, too, if chunks are few
  IndexRange expert_splits = {};
  IndexRange shared_splits = {};

  bool operator==(const Shard&) const = default;
};

// Returns the shards of all ranks. Stages differ by as little as whole layers allow; the
// head counts with the last stage. The ranks of a stage differ, in what `balance` names,
// by as little as whole splits allow.
// INVALID_ARGUMENT: a shape of 0 or above kMaxRanks; more stages than layers; more ranks
// in a stage than attention splits, or than splits of an FFN.
inline constexpr std::uint32_t kMaxRanks = 64;
absl::StatusOr<std::vector<Shard>> PlanShards(const ModelParts& parts, ParallelShape shape,
                                              ShardBalance balance = ShardBalance::kStep);

// Returns the complete subtrees, ascending, that make up splits [range.begin, range.end)
// of the split tree (pairs (0,1), (2,3), ... and so on upwards). A rank that owns these
// splits can add each subtree by itself. The number of splits in a subtree is a power of
// two, and the subtree starts at a multiple of that number.
std::vector<IndexRange> CompleteSubtrees(IndexRange range);

// Instructions that add the sums of complete subtrees to the sum of the whole tree. The
// subtrees together cover all splits, from 0 to the last. The instructions use registers
// 0 .. depth - 1, each as wide as the sums; the result is in register 0.
struct TreeStep {
  bool load = false;       // register = sum `from`; else register += register + 1
  std::uint32_t to = 0;    // register
  std::uint32_t from = 0;  // load only: index of the subtree
};
struct TreeProgram {
  std::vector<TreeStep> steps;
  std::uint32_t depth = 0;
};
TreeProgram MakeTreeProgram(absl::Span<const IndexRange> subtrees);

// The subtrees of a row-parallel product with `all` splits that the owner of `splits` adds by
// itself. The owner of all splits adds the whole tree.
std::vector<IndexRange> SubtreesOf(IndexRange splits, std::uint32_t all);

// The same of products whose splits are summed one by one: for each subtree of SubtreesOf the
// program that adds its splits. A load's `from` is a split of the owner, counted from its first.
std::vector<TreeProgram> MakeSplitPrograms(IndexRange splits, std::uint32_t all);

// How the partial sums of all ranks of a stage become the sum of the product. A rank's sums are
// those of its subtrees, in order; `parts` says which of them a load of index i reads.
struct SumTree {
  struct Part {
    std::uint32_t rank, place;
  };
  TreeProgram program;
  std::vector<Part> parts;
};
// `splits` are those of each rank, from the first split to the last.
SumTree MakeSumTree(absl::Span<const IndexRange> splits, std::uint32_t all);

}  // namespace flotilla::worker
