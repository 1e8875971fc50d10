// Which of several equal replicas serves a request: the power of two choices over the
// the outstanding tokens of a replica, less those of the prompt that it probably has already.
//
// Two replicas drawn at random, and the one that was sent most of this prompt's beginning,
// are compared: two are enough to keep queues short (Mitzenmacher 2001), and as only two
// are drawn, routers that see the same old figures do not all run to one replica. What a
// prefix saves is counted in tokens, as a queue is: a replica that is behind by more than
// that is not chosen for its cache. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace flotilla {

struct ReplicaChoice {
  std::uint64_t outstanding_tokens = 0;  // OutstandingTokens::total
  std::uint32_t overlap_tokens = 0;      // PrefixMap::Overlap
};

// The index of the one to take of `replicas`, which are not empty. `random` is uniform over
// 64 bits.
std::size_t ChooseReplica(absl::Span<const ReplicaChoice> replicas, std::uint64_t random);

// The outstanding tokens of a replica as one router knows it: its own requests to the token, as it
// receives every one of them, and those of other routers as the replica's last report had them.
// Example:
//
//   outstanding.OnSent(n);      // on its way
//   outstanding.OnAdmitted(n);  // from now on a report contains it
//   outstanding.OnDone(1);      // a token came
//   outstanding.OnReport(r);
class OutstandingTokens {
 public:
  // Each request is sent once, and then admitted, or not served there.
  void OnSent(std::uint64_t tokens) { sent_ += tokens; }
  void OnAdmitted(std::uint64_t tokens) {
    sent_ -= tokens;
    own_ += tokens;
  }
  void OnNotServed(std::uint64_t tokens) { sent_ -= tokens; }
  // Computed, or not wanted any more; in all what was admitted.
  void OnDone(std::uint64_t tokens) { own_ -= tokens; }
  void OnReport(std::uint64_t outstanding_tokens) {
    others_ = outstanding_tokens - std::min(outstanding_tokens, own_);
  }
  std::uint64_t total() const { return others_ + own_ + sent_; }

 private:
  std::uint64_t others_ = 0;
  std::uint64_t own_ = 0;
  std::uint64_t sent_ = 0;  // not yet admitted
};

}  // namespace flotilla
