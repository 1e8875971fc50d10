// Tests the threads of the pool. They run the jobs that FairQueue chooses, and abandoned jobs cost
// nothing.
#include "router/tokenizer_pool.h"

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

namespace flotilla::router {
namespace {

constexpr std::size_t kPoolBytes = 64u << 20;

TEST(TokenizerPool, RunsWhatItTookBeforeItEnds) {
  for (std::uint32_t threads : {1u, 2u, 3u, 8u}) {
    std::atomic<int> run = 0;
    int taken = 0;
    {
      TokenizerPool pool(threads, 64, kPoolBytes);
      for (int i = 0; i < 200; ++i) {
        taken += pool.TryRun(std::to_string(i % 5), std::size_t{1} << i % 22, [&] { ++run; });
      }
    }
    EXPECT_EQ(run, taken) << threads;
    EXPECT_GE(taken, 40);
  }
}

// Long inputs that never end do not keep a short one waiting.
TEST(TokenizerPool, AThreadIsLeftForShortInputs) {
  for (std::uint32_t threads : {2u, 3u, 8u}) {
    absl::Notification end, short_one;
    TokenizerPool pool(threads, 64, kPoolBytes);
    for (int i = 0; i < 10; ++i) {
      const std::size_t bytes = i % 2 == 0 ? 4u << 20 : 100u << 10;
      ASSERT_TRUE(pool.TryRun("", bytes, [&] { end.WaitForNotification(); }));
    }
    ASSERT_TRUE(pool.TryRun("", 100, [&] { short_one.Notify(); }));
    EXPECT_TRUE(short_one.WaitForNotificationWithTimeout(absl::Seconds(60))) << threads;
    end.Notify();
  }
}

TEST(TokenizerPool, WhatIsAbandonedIsNotRunAndMakesRoom) {
  absl::Notification begun, end;
  std::atomic<int> run = 0;
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  const auto held = std::make_shared<int>();
  {
    TokenizerPool pool(1, 4, kPoolBytes);
    ASSERT_TRUE(pool.TryRun("a", 1, [&] {
      begun.Notify();
      end.WaitForNotification();
    }));
    begun.WaitForNotification();
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(pool.TryRun(
          "a", 1, [&, held] { ++run; }, gone));
    }
    ASSERT_FALSE(pool.TryRun("a", 1, [&] { run += 100; }));  // its part is full
    EXPECT_EQ(held.use_count(), 4);
    gone->store(true);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(pool.TryRun("a", 1, [&] { run += 10; }));
    }
    EXPECT_EQ(held.use_count(), 1);  // what the jobs held is freed too
    end.Notify();
  }
  EXPECT_EQ(run, 30);
}

TEST(TokenizerPool, RefusesByBytes) {
  absl::Notification begun, end;
  TokenizerPool pool(1, 100, 1000);
  ASSERT_TRUE(pool.TryRun("", 1, [&] {
    begun.Notify();
    end.WaitForNotification();
  }));
  begun.WaitForNotification();
  EXPECT_FALSE(pool.TryRun("", 1001, [] {}));
  EXPECT_TRUE(pool.TryRun("", 700, [] {}));
  EXPECT_FALSE(pool.TryRun("", 300, [] {}));  // it holds most of it
  EXPECT_TRUE(pool.TryRun("other", 300, [] {}));
  EXPECT_FALSE(pool.TryRun("third", 1, [] {}));
  end.Notify();
}

}  // namespace
}  // namespace flotilla::router
