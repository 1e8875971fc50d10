// The strong identifiers of the whole system. They are values without behaviour.
//
// A RequestId or a BlockId never converts into another id or an integer by accident. Ids
// are cheap to copy, ordered and hashable. This header does not assign ids.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace flotilla {

// An integer of type Rep that only equals and compares with its own kind.
template <class Tag, class Rep>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  template <class H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  Rep value_ = 0;
};

// A token of the model's vocabulary. Negative values are never valid.
using TokenId = std::int32_t;

// The time from a worker group's Ready to its loss. A plan or result of another epoch is
// refused.
using Epoch = StrongId<struct EpochTag, std::uint64_t>;
// Number of a step plan within its epoch: 1, 2, 3 ... without gaps.
using Step = StrongId<struct StepTag, std::uint64_t>;
// A page of the KV pool. Block 0 is the null block: never granted, never read.
using BlockId = StrongId<struct BlockTag, std::uint32_t>;
inline constexpr BlockId kNullBlock{0};
// Index of a sequence within its request, 0-based (n, best_of, beams).
using SequenceIndex = StrongId<struct SequenceIndexTag, std::uint32_t>;
// Name of a sequence between scheduler and workers: a dense number below
// ExecutorDescription::max_sequences, in use from OpenSequence to DropSequence and
// then free for reuse.
using SequenceHandle = StrongId<struct SequenceHandleTag, std::uint32_t>;
// Position of a KV group in ExecutorDescription::groups.
using GroupIndex = StrongId<struct GroupIndexTag, std::uint32_t>;
// How often the router has submitted this request. The router drops events of older attempts.
using Attempt = StrongId<struct AttemptTag, std::uint32_t>;

// Internal id of a request. The client's own request id is a label and never
// part of it, so that no client can name or cancel another client's work.
struct RequestId {
  std::uint64_t incarnation = 0;  // random per router process
  std::uint64_t counter = 0;      // unique within the incarnation

  friend constexpr auto operator<=>(const RequestId&, const RequestId&) = default;
  template <class H>
  friend H AbslHashValue(H h, const RequestId& id) {
    return H::combine(std::move(h), id.incarnation, id.counter);
  }
};

}  // namespace flotilla
