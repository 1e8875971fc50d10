// What a row of logits is reduced to: the partial result of each shard of the vocabulary, and the
// result of all shards together.
//
// A backend reduces its rank's shard of a row, and ranks send each other a few numbers and not full
// rows. This works for log-probabilities, and for tokens whose shards can be judged one by one
// (NeedsFullRow says which tokens need the full row). All functions are pure. The outcome is that
// of sampler.h for the full row, bit for bit, however the vocabulary is sharded.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/types/ids.h"
#include "common/types/plan.h"
#include "kernels/ops.h"
#include "worker/compute/step_inputs.h"
#include "worker/core/sharding.h"

namespace flotilla::worker {

// Consecutive entries of a row of logits. The last entries of a row may belong to no token
// (ModelSpec::tokens): they count in the row's softmax, and are never drawn or listed.
struct VocabularyShard {
  TokenId first_token = 0;
  std::int32_t tokens = 0;  // the first so many entries of the shard belong to tokens
  // The sizes, in entries, of the complete subtrees that make up the shard. They belong to
  // the tree of chunks by which Ops::softmax_stats adds a row.
  std::vector<std::int32_t> subtrees;
};

// The shards of a vocabulary.
class VocabularyShards {
 public:
  // `shards` follow each other from entry 0 to the last one. Each begins at a multiple of
  // kernels::kVocabularyChunk, or is empty at the end. A shard may be empty. The first `tokens`
  // entries belong to tokens.
  VocabularyShards(absl::Span<const IndexRange> shards, std::uint32_t tokens);

  std::uint32_t size() const { return static_cast<std::uint32_t>(shards_.size()); }
  const VocabularyShard& shard(std::uint32_t index) const { return shards_[index]; }
  std::uint32_t tokens() const { return tokens_; }
  // How the statistics of all subtrees, in order, become those of the row.
  const TreeProgram& tree() const { return tree_; }
  // The most subtrees of one shard.
  std::size_t most_subtrees() const;

 private:
  std::uint32_t tokens_;
  std::vector<VocabularyShard> shards_;
  TreeProgram tree_;
};

// The partial result of consecutive shards of a row.
struct RowPartial {
  std::vector<kernels::SoftmaxStats> stats;  // of their subtrees
  // The best token of these shards for the draw, and its score; -infinity: there is none.
  kernels::TokenScore winner{0, -std::numeric_limits<float>::infinity()};
  float logit = -std::numeric_limits<float>::infinity();  // of the winner
  std::vector<kernels::TokenScore> best;                  // by logit, best first
};

// Reduces the `logits` of one shard as the request asks. `edits` are those of the request, for
// tokens of any shard. The request wants no full row.
RowPartial ReduceRow(const kernels::Ops& ops, const VocabularyShard& shard,
                     absl::Span<const float> logits, const RowRequest& request,
                     absl::Span<const LogitEdit> edits);

// Adds to `row` the partial of the shard that follows those of `row`.
void Append(RowPartial next, RowPartial& row);

// These compute the result of a whole row. `row` has the statistics of all subtrees, and
// `top` was the same for all shards. INTERNAL: the row, or the changed row from which the
// token is drawn, has no softmax.
absl::StatusOr<SampledToken> ConcludeToken(const RowPartial& row,
                                           const VocabularyShards& vocabulary, std::int32_t top);
absl::StatusOr<std::vector<TopLogprob>> ConcludeCandidates(const RowPartial& row,
                                                           const VocabularyShards& vocabulary,
                                                           std::uint32_t count);

}  // namespace flotilla::worker
