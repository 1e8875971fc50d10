// DryBreakers: the tokens at which DRY begins anew to count repeated tokens (SamplingParams).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/types/ids.h"

namespace flotilla {

// A breaker is heads[i], followed by the tokens of tails[tail_of[i]]. Tokens that contain the text
// of a breaker are heads with an empty tail.
struct DryBreakers {
  // SmolLM2's vocabulary of 49,152 tokens has 401 heads for llama.cpp's default breakers.
  static constexpr std::size_t kMaxHeads = 16384;
  static constexpr std::size_t kMaxTails = 1024;
  static constexpr std::size_t kMaxTailTokens = 20;  // of one, as in llama.cpp

  // The pairs of head and number of the tail ascend and are unique, and so are the tails.
  std::vector<TokenId> heads;
  std::vector<std::uint32_t> tail_of;  // as many as heads
  std::vector<std::vector<TokenId>> tails;

  bool operator==(const DryBreakers&) const = default;
};

// INVALID_ARGUMENT if there are too many, or if they are not as above.
absl::Status CheckDryBreakers(const DryBreakers& breakers, std::uint32_t vocab_size);

}  // namespace flotilla
