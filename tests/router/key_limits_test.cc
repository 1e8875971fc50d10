// What the owners of keys may use: the bucket of tokens, and requests that run at once.
#include "router/key_limits.h"

#include <memory>
#include <random>

#include "gtest/gtest.h"
#include "router/core/token_bucket.h"
#include "router/errors.h"

namespace flotilla::router {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;

TEST(TokenBucketTest, AMinutesTokensMayBeUsedAtOnceAndComeBackEvenly) {
  TokenBucket bucket;
  std::int64_t now = 5 * kSecondNs;
  bucket.Take(59, 60, now);
  EXPECT_EQ(bucket.WaitNs(now), 0);
  bucket.Take(1, 60, now);
  EXPECT_EQ(bucket.WaitNs(now), 1);  // empty, until any part of a token is there
  bucket.Take(10, 60, now);          // a debt of ten
  EXPECT_EQ(bucket.WaitNs(now), 10 * kSecondNs + 1);
  now += 10 * kSecondNs;
  EXPECT_EQ(bucket.WaitNs(now), 1);
  now += 1;
  EXPECT_EQ(bucket.WaitNs(now), 0);
}

TEST(TokenBucketTest, ALongPauseSavesNoMoreThanAMinute) {
  TokenBucket bucket;
  const std::int64_t now = 1'000'000 * kSecondNs;
  bucket.Take(60, 60, now);
  EXPECT_GT(bucket.WaitNs(now), 0);
}

TEST(TokenBucketTest, TheRateIsKeptOverTime) {
  std::mt19937 random(7);
  TokenBucket bucket;
  std::int64_t now = 0, used = 0;
  constexpr std::int64_t kRate = 1000, kLargest = 300;
  while (now < 100 * TokenBucket::kMinuteNs) {
    now += bucket.WaitNs(now);
    const std::int64_t tokens = static_cast<std::int64_t>(random() % kLargest);
    bucket.Take(tokens, kRate, now);
    used += tokens;
  }
  EXPECT_GE(used, 100 * kRate);
  EXPECT_LE(used, 101 * kRate + 2 * kLargest);
}

TEST(TokenBucketTest, ExtremesDoNotOverflow) {
  TokenBucket bucket;
  bucket.Take(INT64_MAX, 1, 0);
  bucket.Take(INT64_MAX, 1, 0);
  EXPECT_EQ(bucket.WaitNs(0), TokenBucket::kLongestNs - TokenBucket::kMinuteNs + 1);
  bucket.Take(TokenBucket::kMostTokens, TokenBucket::kMostTokens, 0);
  EXPECT_EQ(bucket.WaitNs(TokenBucket::kLongestNs), 0);
}

TEST(KeyLimitsTest, RequestsOfANameThatRunAtOnceAreCounted) {
  const OwnerLimits two{.max_concurrent = 2};
  auto limits = std::make_unique<KeyLimits>();
  auto first = limits->Begin("alice", 1, two, 0), second = limits->Begin("alice", 1, two, 0);
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status third = limits->Begin("alice", 1, two, 0).status();
  EXPECT_EQ(third.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(third.message(),
            "the limit max-concurrent=2 of 'alice' is reached: try again when a running request "
            "has ended");
  EXPECT_EQ(ErrorCode(third), kRateLimitExceeded);
  EXPECT_EQ(RetryAfterMs(third), 1000);
  EXPECT_TRUE(limits->Begin("bob", 1, two, 0).ok());
  EXPECT_TRUE(limits->Begin("alice", 1, {}, 0).ok());  // the limit has just been taken away
  first->reset();
  EXPECT_TRUE(limits->Begin("alice", 1, two, 0).ok());
  limits.reset();  // a permit may be the last to go
}

// A later try would not succeed either.
TEST(KeyLimitsTest, MorePromptsThanMayEverRunAtOnceAreRefusedForGood) {
  const OwnerLimits two{.max_concurrent = 2};
  KeyLimits limits;
  const auto running = limits.Begin("alice", 2, two, 0);
  ASSERT_TRUE(running.ok());
  const absl::Status refused = limits.Begin("alice", 3, two, 0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorField(refused), "prompt");
  EXPECT_EQ(refused.message(),
            "prompt: 3 prompts run at once, and the limit of 'alice' is max-concurrent=2; send "
            "fewer in a request");
  EXPECT_TRUE(limits.Begin("alice", 3, {}, 0).ok());
}

TEST(KeyLimitsTest, TokensAreTakenAfterwardsAndComeBack) {
  const OwnerLimits limit{.tokens_per_minute = 60};
  KeyLimits limits;
  EXPECT_TRUE(limits.Begin("alice", 1, limit, 0).ok());
  limits.Use("alice", 90, limit, 0);
  const absl::Status refused = limits.Begin("alice", 1, limit, 0).status();
  EXPECT_EQ(refused.message(),
            "the limit tokens-per-minute=60 of 'alice' is reached: the tokens of this minute are "
            "used up");
  EXPECT_EQ(RetryAfterMs(refused), 30'001);
  EXPECT_TRUE(limits.Begin("bob", 1, limit, 0).ok());
  EXPECT_TRUE(limits.Begin("alice", 1, limit, 31 * kSecondNs).ok());
}

}  // namespace
}  // namespace flotilla::router
