// Each sequence has an index of the n-grams of its own tokens, min_n <= n <= max_n,
// by hash. A call adds at most kMostNewEntries to it: first those of the tokens that are new, then
// those of earlier tokens, from the latest to the first. So drafts begin with the first call, from
// the latest tokens, and a step costs the same however long the context is. What an index knows
// depends only on the calls for its sequence.
//
// The table of an index has at least four slots of 8 bytes for each entry, until it has kMostSlots
// (8 MiB a sequence). When it must grow, it begins anew from the latest tokens. Buckets that are
// full drop their oldest n-gram.
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
  static constexpr std::uint32_t kMostNewEntries = 4096;
  static constexpr std::size_t kFewestSlots = 4096;  // 32 KiB
  static constexpr std::size_t kMostSlots = std::size_t{1} << 20;

  // 1 <= min_n <= max_n <= kMaxNgram.
  explicit NgramIndex(const NgramOptions& options) : options_(options) {}

  // Finds the longest suffix of `tokens` that occurred earlier in the tokens that are indexed, and
  // returns the tokens that followed its last earlier occurrence. Returns at most `limit` tokens.
  // If the two occurrences have c tokens in common, counted backwards, it returns at most c - 1
  // tokens, but at least one.
  // Returns none if no suffix occurred earlier. If the draft reaches the end of `tokens`,
  // it goes on with its own first tokens. `tokens` begins with the tokens of earlier calls.
  std::vector<TokenId> Draft(absl::Span<const TokenId> tokens, std::uint32_t limit);

  // The entries that the last call of Draft added.
  std::uint32_t new_entries() const { return new_entries_; }
  std::size_t slots() const { return slots_.size(); }

 private:
  struct Slot {
    std::uint32_t tag = 0;  // the high half of the hash
    std::uint32_t end = 0;  // the position after the last occurrence; 0: the slot is empty
  };
  static constexpr std::size_t kBucket = 8;  // slots; a cache line

  // Adds n-grams of the tokens before `end`, kMostNewEntries at most.
  void Extend(absl::Span<const TokenId> tokens, std::size_t end);
  // Begins an empty index that grows from `end` in both directions.
  void Begin(std::size_t end);
  // Adds the n-grams whose last token is at position `last`.
  void Add(absl::Span<const TokenId> tokens, std::size_t last);
  void Add(std::uint64_t hash, std::uint32_t end);
  std::size_t BucketOf(std::uint64_t hash) const {
    return (static_cast<std::size_t>(hash) * kBucket) & (slots_.size() - 1);
  }
  // Returns where the last occurrence of the suffix of n tokens ends; 0: there is none.
  std::size_t Find(absl::Span<const TokenId> tokens, std::uint32_t n) const;

  const NgramOptions options_;
  // The n-grams whose last token is in [first_, indexed_) were added.
  std::size_t first_ = 0, indexed_ = 0;
  std::size_t used_ = 0;  // slots that are not empty
  std::uint32_t new_entries_ = 0;
  // Buckets of kBucket slots. If different n-grams have equal tags in a bucket, the later one hides
  // the earlier one; Find compares the tokens.
  std::vector<Slot> slots_;
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
