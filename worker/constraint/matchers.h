// The matchers of a worker's sequences: which place in its grammar each has reached.
//
// A sequence that goes on needs one step of its matcher. One that was preempted, replayed or
// forked, or whose handle has a new owner, gets a copy of the matcher that has most in common with
// it. What a matcher was refused for is remembered, since the draft tokens of a step ask for it
// first, and a step whose masks were late asks again. The thread that computes masks owns this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/types/ids.h"
#include "worker/constraint/grammar.h"

namespace flotilla::worker {

struct MatcherLimits {
  std::size_t count = 4096;
  std::uint64_t idle_steps = 256;  // a matcher that was not used in so many steps is dropped
  // A usual grammar takes some 700 bytes a token.
  std::size_t bytes_each = 64u << 20;
  std::size_t bytes = 512u << 20;
};

class Matchers {
 public:
  // A matcher that has accepted `tokens`.
  class Place {
   public:
    // The mask of what may come next, of mask_words() words; empty if no token may. It lives until
    // the place changes.
    absl::Span<const std::uint32_t> Mask();
    // For tokens that are only tried; Mask stays that of `tokens`.
    GrammarMatcher& matcher() { return matcher_; }

   private:
    friend class Matchers;
    Place(std::shared_ptr<const Grammar> grammar, GrammarMatcher matcher)
        : grammar_(std::move(grammar)), matcher_(std::move(matcher)) {}
    std::size_t Common(absl::Span<const TokenId> tokens) const;
    void Rollback(std::size_t length);
    bool Accept(TokenId token);

    std::shared_ptr<const Grammar> grammar_;
    GrammarMatcher matcher_;
    std::vector<TokenId> tokens_;
    std::vector<std::uint32_t> mask_;  // of tokens_, or empty
    bool any_ = false;                 // mask_ has a bit
    std::uint64_t used_ = 0;           // the last step
    std::size_t bytes_ = 0;
  };

  explicit Matchers(MatcherLimits limits) : limits_(limits) {}

  // How many tokens the sequence's own matcher has to accept; SIZE_MAX: it has none that helps.
  std::size_t Missing(SequenceHandle sequence, const Grammar& grammar,
                      absl::Span<const TokenId> outputs) const;

  // The place of a sequence after `outputs`, valid until the next call. FAILED_PRECONDITION: the
  // grammar does not allow these tokens; OUT_OF_RANGE: the matcher takes too much memory;
  // RESOURCE_EXHAUSTED: all matchers together do. They have a sentence for the client.
  absl::StatusOr<Place*> MoveTo(SequenceHandle sequence,
                                const std::shared_ptr<const Grammar>& grammar,
                                absl::Span<const TokenId> outputs);

  // Begins the next step, and drops what was not used for long.
  void NextStep();

  std::size_t size() const { return places_.size(); }
  std::size_t bytes() const { return bytes_; }

 private:
  using Places = absl::flat_hash_map<SequenceHandle, std::unique_ptr<Place>>;
  // Tokens that no matcher of a grammar can accept, or not without taking too much memory.
  struct Refusal {
    std::shared_ptr<const Grammar> grammar;
    std::vector<TokenId> tokens;
    absl::Status why;
    std::uint64_t used = 0;  // the last step
  };

  // Makes the place that goes on from the matcher with the most in common.
  Place& Find(SequenceHandle sequence, const std::shared_ptr<const Grammar>& grammar,
              absl::Span<const TokenId> outputs);
  // Why the outputs were refused before; OK: they were not, or something else was.
  absl::Status FindRefusal(SequenceHandle sequence, const Grammar& grammar,
                           absl::Span<const TokenId> outputs);
  void Drop(Places::iterator place);
  void DropOldest();

  const MatcherLimits limits_;
  std::uint64_t step_ = 0;
  Places places_;
  absl::flat_hash_map<SequenceHandle, Refusal> refusals_;
  std::size_t bytes_ = 0;
};

}  // namespace flotilla::worker
