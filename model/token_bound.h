// TokenBound: how many tokens a text has at least, without encoding it.
//
// Of a token's n bytes each counts 1/n of it. No byte counts less than 1/m, where m is the
// length of the longest token with that byte in it; so the sum of 1/m over a text's bytes is
// never more than its tokens. For letters m is 20 or so and for spaces 100, which is enough
// to refuse megabytes after a look at some hundred kilobytes.
//
// A value built with a vocabulary and then only read, by any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace flotilla {

class TokenBound {
 public:
  // Some text's bytes become this one token.
  void AddToken(std::string_view bytes);
  // This byte is a token if it is in no other. Bytes without vanish when they are encoded,
  // and count nothing.
  void AddByte(uint8_t byte);

  // True when `text`, or what NFC makes of it, certainly has more than `max_tokens` tokens.
  // False says nothing. Looks at no more of it than it takes to be sure.
  bool Exceeds(std::string_view text, size_t max_tokens) const;
  bool NormalizedExceeds(std::string_view text, size_t max_tokens) const;

 private:
  std::array<uint32_t, 256> longest_{};  // bytes of the longest token with this byte in it
  std::array<bool, 256> counts_{};
  std::array<uint64_t, 256> share_{};  // of a token, in 2^-32, rounded down
};

}  // namespace flotilla
