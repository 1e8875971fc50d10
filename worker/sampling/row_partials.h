// A row of logits of which several ranks hold a shard each: what one shard says about
// it, and what all of them say together.
//
// So ranks send each other some numbers and not full rows: where a token is drawn from
// all that the row has (NeedsFullRow says where not), and for log-probabilities. Pure
// functions; the outcome is that of sampler.h for the full row, bit for bit, however the
// vocabulary is sharded.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/types/ids.h"
#include "common/types/plan.h"
#include "common/types/request.h"
#include "kernels/ops.h"
#include "worker/core/sharding.h"
#include "worker/sampling/sampler.h"

namespace flotilla {

// Consecutive tokens of the vocabulary.
struct VocabularyShard {
  TokenId first_token = 0;
  // The sizes, in tokens, of the complete subtrees that it consists of, in the tree of
  // chunks by which Ops::softmax_stats adds a row.
  std::vector<std::int32_t> subtrees;
};

// The shards of a vocabulary.
class VocabularyShards {
 public:
  // `shards` follow each other from token 0 to the last, each from a multiple of
  // kernels::kVocabularyChunk. None may be empty.
  explicit VocabularyShards(absl::Span<const IndexRange> shards);

  std::uint32_t size() const { return static_cast<std::uint32_t>(shards_.size()); }
  const VocabularyShard& shard(std::uint32_t index) const { return shards_[index]; }
  // How the statistics of all subtrees, in order, become those of the row.
  const TreeProgram& tree() const { return tree_; }
  // The most subtrees of one shard.
  std::size_t most_subtrees() const;

 private:
  std::vector<VocabularyShard> shards_;
  TreeProgram tree_;
};

// What consecutive shards say about a row.
struct RowPartial {
  std::vector<kernels::SoftmaxStats> stats;  // of their subtrees
  // The token of theirs that would be the row's, and by what: -infinity for none.
  kernels::TokenScore winner{0, -std::numeric_limits<float>::infinity()};
  float logit = -std::numeric_limits<float>::infinity();  // of the winner
  std::vector<kernels::TokenScore> best;                  // by logit, best first
};

// What SampleRow, RowLogprobs and RowCandidates do, of one shard's `logits`. The
// parameters are such that no whole row is needed.
RowPartial SamplePartial(const kernels::Ops& ops, const VocabularyShard& shard,
                         absl::Span<const float> logits, const SamplingParams& sampling,
                         const LogprobSpec& logprobs, const TokenPosition& position);
RowPartial LogprobsPartial(const kernels::Ops& ops, const VocabularyShard& shard,
                           absl::Span<const float> logits, TokenId token, std::int32_t top);
RowPartial CandidatesPartial(const kernels::Ops& ops, const VocabularyShard& shard,
                             absl::Span<const float> logits, std::uint32_t count);

// Adds the shard that follows those of `row`.
void Append(RowPartial next, RowPartial& row);

// What the shards of a whole row say. `row` has the statistics of all subtrees, and `top`
// was the same for all shards. INTERNAL: the row, or what was made of it, has no softmax.
absl::StatusOr<SampledToken> ConcludeToken(const RowPartial& row,
                                           const VocabularyShards& vocabulary, std::int32_t top);
absl::StatusOr<std::vector<TopLogprob>> ConcludeCandidates(const RowPartial& row,
                                                           const VocabularyShards& vocabulary,
                                                           std::uint32_t count);

}  // namespace flotilla
