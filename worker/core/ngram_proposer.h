// NgramProposer: drafts the tokens that followed when the last tokens of a sequence
// occurred before (prompt lookup). It works well where answers repeat their prompt: edits,
// quotes, extraction, code. The longer the current repetition already is, the more
// tokens it drafts, because a long repetition often goes on and a short one is often chance
// (SuffixDecoding, Oliaro et al. 2024).
//
// Each sequence has an index of the n-grams of its own tokens, min_n <= n <= max_n,
// by hash. The index grows by max_n - min_n + 1 entries per token, and a lookup reads at
// most as many, so a step costs the same however long the context is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/types/ids.h"
#include "worker/core/proposer.h"

namespace flotilla::worker {

struct NgramOptions {
  // The last n tokens of the sequence must have occurred before, min_n <= n <= max_n. The
  // longest such suffix is used. Shorter suffixes match more often and are right less often.
  std::uint32_t min_n = 2;
  std::uint32_t max_n = 5;  // at most kMaxNgram
};

inline constexpr std::uint32_t kMaxNgram = 16;

// The n-grams of one growing sequence.
class NgramIndex {
 public:
  // 1 <= min_n <= max_n <= kMaxNgram.
  explicit NgramIndex(const NgramOptions& options) : options_(options) {}

  // Finds the longest suffix of `tokens` that occurred earlier, and returns the tokens
  // that followed its last earlier occurrence. Returns at most `limit` tokens. If the two
  // occurrences have c tokens in common, counted backwards, it returns at most c - 1 tokens,
  // but at least one.
  // Returns none if no suffix occurred earlier. If the draft reaches the end of `tokens`,
  // it goes on with its own first tokens. `tokens` begins with the tokens of earlier calls.
  std::vector<TokenId> Draft(absl::Span<const TokenId> tokens, std::uint32_t limit);

 private:
  // Adds the n-grams that end before position `end`.
  void Extend(absl::Span<const TokenId> tokens, std::size_t end);
  // Returns where the last occurrence of the suffix of n tokens ends; 0: there is none.
  std::size_t Find(absl::Span<const TokenId> tokens, std::uint32_t n) const;

  const NgramOptions options_;
  std::size_t indexed_ = 0;  // positions whose n-grams are in the index
  // Hash of (n, tokens) -> position after the last occurrence. If different tokens have
  // equal hashes, the later n-gram hides the earlier one; Find compares the tokens.
  absl::flat_hash_map<std::uint64_t, std::uint32_t> last_;
};

class NgramProposer final : public Proposer {
 public:
  explicit NgramProposer(const NgramOptions& options = {}) : options_(options) {}

  void Propose(absl::Span<DraftRequest> requests) override;
  void Forget(SequenceHandle sequence) override;

 private:
  const NgramOptions options_;
  absl::flat_hash_map<std::uint32_t, NgramIndex> indexes_;  // by handle
};

}  // namespace flotilla::worker
