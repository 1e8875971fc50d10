// Chooses which of several equal replicas serves a request, by the power of two choices. It
// compares the outstanding tokens of each replica, less the tokens of the prompt that the
// replica probably has in its cache.
//
// Two replicas are drawn at random and compared with the one that was sent most of this
// prompt's prefix. Two are enough to keep queues short (Mitzenmacher 2001). As only two are
// drawn, routers that see the same old figures do not all choose the same replica. The saving
// by a prefix and the length of a queue are both counted in tokens. So a replica is not chosen for
// its cache if its queue is longer by more than the saving. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace flotilla::router {

struct ReplicaChoice {
  std::uint64_t outstanding_tokens = 0;  // OutstandingTokens::total
  std::uint32_t overlap_tokens = 0;      // PrefixMap::Overlap
};

// The index of the chosen replica in `replicas`, which is not empty. `random` is uniform over
// 64 bits.
std::size_t ChooseReplica(absl::Span<const ReplicaChoice> replicas, std::uint64_t random);

// The outstanding tokens of a replica, as one router knows them. The count of the router's own
// requests begins with what the replica expects of each, and falls with each of their tokens. The
// rest of the replica's last report is that of other routers' requests, and of answers that became
// longer than expected. Example:
//
//   outstanding.OnSent(n);         // on its way
//   outstanding.OnAdmitted(n, m);  // from now on a report contains it, as m tokens
//   outstanding.OnDone(1);         // a token came
//   outstanding.OnReport(r);
class OutstandingTokens {
 public:
  // Each request is sent once. Then this replica admits it or does not serve it.
  void OnSent(std::uint64_t tokens) { sent_ += tokens; }
  void OnAdmitted(std::uint64_t sent, std::uint64_t expected) {
    sent_ -= sent;
    own_ += expected;
  }
  void OnNotServed(std::uint64_t tokens) { sent_ -= tokens; }
  // `tokens` are computed, or not wanted any more. All calls together report as many tokens as
  // were admitted.
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

}  // namespace flotilla::router
