// RowMasks: which tokens the constraints of sequences allow in the rows of one step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace flotilla::worker {

struct RowMask {
  enum class State : std::uint8_t {
    kReady,
    kLate,     // it is not there yet; the row runs again in a later step
    kRefused,  // it will never be there, so the sequence ends
    kNoRoom,   // the same, but there may be room for the constraint later
    kNoToken,  // no token may come next; a beam then has no candidates, and others end
  };
  State state = State::kLate;
  bool was_awaited = false;  // kLate: the step has waited for it
  // kReady: token t is allowed if bit t % 32 of word t / 32 is set. Tokens beyond it are not. It is
  // valid as long as the RowMasks.
  absl::Span<const std::uint32_t> allowed;
  // kRefused, kNoRoom, kNoToken: why, at most SequenceResult::kMaxReason bytes.
  std::string reason;
};

class RowMasks {
 public:
  virtual ~RowMasks() = default;

  // The mask for row `at` of those that sample, of the sequence numbered `item` among the
  // constrained ones of the step. It waits for it for at most `patience`. Any thread may call it,
  // several at a time.
  virtual RowMask Wait(std::size_t item, std::uint32_t at, absl::Duration patience) = 0;
};

}  // namespace flotilla::worker
