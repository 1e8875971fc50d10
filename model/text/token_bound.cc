#include "model/text/token_bound.h"

#include <algorithm>

namespace flotilla::model {
namespace {

constexpr int kShareBits = 32;
// The number of bytes that are summed between two checks of the sum.
constexpr size_t kStride = 4096;

// Whether the sum of `share(i)` over `text` exceeds `max_tokens`. A byte is at most one token, so a
// text of at most `max_tokens` bytes needs no sum. A bound of 2^32 tokens or more counts as never
// exceeded.
template <typename Share>
bool SumExceeds(std::string_view text, size_t max_tokens, const Share& share) {
  if (text.size() <= max_tokens || max_tokens >> (64 - kShareBits) != 0) return false;
  const uint64_t most = static_cast<uint64_t>(max_tokens) << kShareBits;
  uint64_t sum = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at + std::min(kStride, text.size() - at);
    for (; at < end; ++at) sum += share(at);
    if (sum > most) return true;
  }
  return false;
}

}  // namespace

void TokenBound::AddToken(std::string_view bytes) {
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    longest_[byte] = std::max(longest_[byte], static_cast<uint32_t>(bytes.size()));
    if (counts_[byte]) share_[byte] = (uint64_t{1} << kShareBits) / longest_[byte];
  }
}

void TokenBound::AddByte(uint8_t byte) {
  counts_[byte] = true;
  share_[byte] = (uint64_t{1} << kShareBits) / std::max(longest_[byte], 1u);
}

bool TokenBound::Exceeds(std::string_view text, size_t max_tokens) const {
  return SumExceeds(text, max_tokens,
                    [&](size_t at) { return share_[static_cast<uint8_t>(text[at])]; });
}

// Normalising may shorten a text. But an ASCII character stays the same unless a combining
// mark follows, and no ASCII character is a combining mark.
bool TokenBound::NormalizedExceeds(std::string_view text, size_t max_tokens) const {
  return SumExceeds(text, max_tokens, [&](size_t at) -> uint64_t {
    const auto byte = static_cast<uint8_t>(text[at]);
    const bool stays =
        byte < 0x80 && at + 1 < text.size() && static_cast<uint8_t>(text[at + 1]) < 0x80;
    return stays ? share_[byte] : 0;
  });
}

}  // namespace flotilla::model
