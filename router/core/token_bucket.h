// TokenBucket: how many tokens a client may use a minute. Pure state: the caller brings the time.
//
// The bucket holds the tokens of one minute, is full at first, and fills evenly. Use is known only
// afterwards, so a bucket may go below empty; it then lets nothing through until it has filled
// again. So over a long time a client uses no more than its rate and what ran at once.
#pragma once

#include <algorithm>
#include <cstdint>

namespace flotilla::router {

class TokenBucket {
 public:
  static constexpr std::int64_t kMinuteNs = 60'000'000'000;
  // A debt that takes longer is forgiven.
  static constexpr std::int64_t kLongestNs = 24 * 60 * kMinuteNs;
  // The product of it and a minute fits 63 bits.
  static constexpr std::int64_t kMostTokens = 100'000'000;

  // The time until the bucket is above empty; 0: it is.
  std::int64_t WaitNs(std::int64_t now_ns) const {
    return std::max<std::int64_t>(0, full_ns_ - now_ns - kMinuteNs + 1);
  }
  // Takes what was used, 0 tokens or more, from a bucket of `per_minute` >= 1.
  void Take(std::int64_t tokens, std::int64_t per_minute, std::int64_t now_ns) {
    const std::int64_t fill_ns = std::min(tokens, kMostTokens) * kMinuteNs / per_minute;
    full_ns_ = std::max(full_ns_, now_ns) + std::min(fill_ns, kLongestNs);
    full_ns_ = std::min(full_ns_, now_ns + kLongestNs);
  }

 private:
  std::int64_t full_ns_ = 0;  // when it is full again; a minute later than now: it is empty now
};

}  // namespace flotilla::router
