// TokenBound: a lower bound of a text's number of tokens, without encoding the text.
//
// Each byte of a token of n bytes counts 1/n of the token. No byte counts less than 1/m,
// where m is the length of the longest token with that byte in it. So the sum of 1/m over a
// text's bytes is never more than its number of tokens. m is about 20 for letters and 100 for
// spaces. With these values a text of megabytes is refused after some hundred kilobytes.
//
// A TokenBound is built with a vocabulary and then only read, by any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace flotilla::model {

class TokenBound {
 public:
  // Adds a token that stands for these bytes of text.
  void AddToken(std::string_view bytes);
  // Says that this byte has a token of its own. Bytes without a token of their own vanish
  // when they are encoded outside of other tokens, so they count nothing.
  void AddByte(uint8_t byte);

  // Returns true when `text` (Exceeds), or its NFC form (NormalizedExceeds), certainly has
  // more than `max_tokens` tokens. False means that this is not certain. Looks at no more of
  // the text than it needs.
  bool Exceeds(std::string_view text, size_t max_tokens) const;
  bool NormalizedExceeds(std::string_view text, size_t max_tokens) const;

 private:
  std::array<uint32_t, 256> longest_{};  // bytes of the longest token with this byte in it
  std::array<bool, 256> counts_{};
  std::array<uint64_t, 256> share_{};  // of a token, in 2^-32, rounded down
};

}  // namespace flotilla::model
