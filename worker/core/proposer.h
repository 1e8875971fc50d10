// Proposer: drafts the tokens that a decode will sample, so that one step can
// check several.
//
// GroupState asks the proposer for all decodes of a step at once. Draft tokens never
// change the output of a sequence: each is only a row that may turn out right, and a
// wrong one costs its row. A proposer must be a function of what it was asked so far, so
// that the ranks of a group draft alike, or agree with them. Implementations: NgramProposer, which
// knows tokens only; DraftModel (worker/), which computes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/types/ids.h"
#include "common/types/request.h"

namespace flotilla::worker {

// One decode whose tokens are to be drafted.
struct DraftRequest {
  SequenceHandle sequence;
  SequenceIndex index;  // within its request; part of the noise key
  // All known tokens of the sequence; the last one has not run yet. They grow from call
  // to call, until Forget.
  absl::Span<const TokenId> tokens;
  std::uint32_t output_index = 0;  // of the first token to be drafted
  const SamplingParams* sampling = nullptr;
  const StopRule* stop = nullptr;
  // [groups] block ids. Every row that the draft tokens may take has a block.
  absl::Span<const std::vector<std::int32_t>> tables;
  std::uint32_t limit = 0;  // at least 1

  // The draft tokens, in order: at most `limit`, each in the vocabulary.
  std::vector<TokenId> drafts;
};

class Proposer {
 public:
  virtual ~Proposer() = default;

  // Fills `drafts` of each request; they are of different sequences.
  virtual void Propose(absl::Span<DraftRequest> requests) = 0;

  // The handle's next request, if any, is about another sequence.
  virtual void Forget(SequenceHandle sequence) = 0;
};

}  // namespace flotilla::worker
