// Which of several equal groups serves a request: the power of two choices over the
// tokens that a group owes, less those of the prompt that it probably has already.
//
// Two groups drawn at random, and the one that was sent most of this prompt's beginning,
// are compared: two are enough to keep queues short (Mitzenmacher 2001), and as only two
// are drawn, routers that see the same old figures do not all run to one group. What a
// prefix saves is counted in tokens, as a queue is: a group that is behind by more than
// that is not chosen for its cache. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace flotilla {

struct GroupChoice {
  std::uint64_t owed_tokens = 0;     // OwedTokens::total
  std::uint32_t overlap_tokens = 0;  // PrefixMap::Overlap
};

// The index of the one to take of `groups`, which are not empty. `random` is uniform over
// 64 bits.
std::size_t ChooseGroup(absl::Span<const GroupChoice> groups, std::uint64_t random);

// What a group owes as one router knows it: what the group reported last, and what this
// router has sent since and the report cannot contain yet. Example:
//
//   owed.OnSent(n);      // on its way
//   owed.OnAdmitted(n);  // from now on the next report contains it
//   owed.OnReport(r);
class OwedTokens {
 public:
  // Each request is sent once, and then admitted, or not served there.
  void OnSent(std::uint64_t tokens) { sent_ += tokens; }
  void OnAdmitted(std::uint64_t tokens) {
    sent_ -= tokens;
    admitted_ += tokens;
  }
  void OnNotServed(std::uint64_t tokens) { sent_ -= tokens; }
  void OnReport(std::uint64_t owed_tokens) {
    reported_ = owed_tokens;
    admitted_ = 0;
  }
  std::uint64_t total() const { return reported_ + admitted_ + sent_; }

 private:
  std::uint64_t reported_ = 0;
  std::uint64_t admitted_ = 0;  // since the report
  std::uint64_t sent_ = 0;      // not yet admitted
};

}  // namespace flotilla
