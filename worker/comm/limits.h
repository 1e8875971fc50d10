// The sizes of what ranks send each other. All ranks of a group agree on them.
#pragma once

#include <cstdint>

namespace flotilla::worker {

struct CommLimits {
  // Of an Exchange.
  std::int64_t partial_floats = 0;   // one rank's partial sums of a product
  std::int64_t logit_floats = 0;     // a tile of logits, full rows
  std::int64_t residual_floats = 0;  // what a stage hands to the next
  // Of a Communicator.
  std::int64_t metadata_bytes = 0;  // what a rank sends to all others about a step
  std::uint32_t lag = 1;            // steps that may be applied and not completed
};

}  // namespace flotilla::worker
