// NgramProposer: predicts that a sequence goes on as it did when it last had these
// tokens (prompt lookup). Good where answers repeat their prompt: edits, quotes,
// extraction, code. The longer what it now repeats already is, the more it
// draft tokens, since long repetitions go on and short ones are chance (SuffixDecoding,
// Oliaro et al. 2024).
//
// Each sequence has an index of the n-grams of its own tokens, min_n <= n <= max_n,
// by hash; it grows by max_n - min_n + 1 entries per token and a lookup reads at
// most as many, so a step costs the same however long the context is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/types/ids.h"
#include "worker/core/proposer.h"

namespace flotilla {

struct NgramOptions {
  // Tokens at the end of the sequence that must have occurred before: the longest
  // such suffix counts. Shorter ones find more and are right less often.
  std::uint32_t min_n = 2;
  std::uint32_t max_n = 5;  // at most kMaxNgram
};

inline constexpr std::uint32_t kMaxNgram = 16;

// The n-grams of one sequence that grows.
class NgramIndex {
 public:
  // 1 <= min_n <= max_n <= kMaxNgram.
  explicit NgramIndex(const NgramOptions& options) : options_(options) {}

  // What followed the last earlier occurrence of the longest suffix of `tokens`
  // that has one: up to `limit` tokens, and one fewer than the two occurrences have
  // in common, but one at least. Where the occurrence is so late that they reach the
  // end of `tokens`, they go on with themselves. `tokens` begins with what earlier
  // calls were given.
  std::vector<TokenId> Draft(absl::Span<const TokenId> tokens, std::uint32_t limit);

 private:
  // Adds the n-grams that end before position `end`.
  void Extend(absl::Span<const TokenId> tokens, std::size_t end);
  // Where the last occurrence of the suffix of n tokens ends; 0: there is none.
  std::size_t Find(absl::Span<const TokenId> tokens, std::uint32_t n) const;

  const NgramOptions options_;
  std::size_t indexed_ = 0;  // positions whose n-grams are in the index
  // Hash of (n, tokens) -> position after the last occurrence. Equal hashes of
  // different tokens hide the earlier one; what is found is compared.
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

}  // namespace flotilla
