// Tests which job is next, with random jobs from seeds. Fairness and starvation are bounds.
#include "router/core/fair_queue.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace flotilla::router {
namespace {

using Size = FairQueue::Size;

constexpr std::size_t kSmall = 1000, kMedium = 100'000, kLarge = 4'000'000;
constexpr std::size_t kRoomy = 1u << 30;

std::uint64_t TakeAndEnd(FairQueue& queue) {
  const std::optional<FairQueue::Job> job = queue.Next();
  if (!job) return 0;
  queue.Done(job->size);
  return job->id;
}

TEST(FairQueue, AShortInputPassesLongOnesOfItsOwnTenant) {
  FairQueue queue({.threads = 1, .max_jobs = 100, .max_bytes = kRoomy});
  ASSERT_TRUE(queue.Push("", kLarge, 1));
  ASSERT_TRUE(queue.Push("", kMedium, 2));
  ASSERT_TRUE(queue.Push("", kSmall, 3));
  ASSERT_TRUE(queue.Push("", kSmall, 4));
  for (const std::uint64_t id : {3, 4, 2, 1, 0}) EXPECT_EQ(TakeAndEnd(queue), id);
}

TEST(FairQueue, LongInputsNeverHaveAllThreads) {
  for (std::uint32_t threads = 1; threads <= 8; ++threads) {
    FairQueue queue({.threads = threads, .max_jobs = 100, .max_bytes = kRoomy});
    for (std::uint64_t id = 1; id <= 10; ++id) ASSERT_TRUE(queue.Push("a", kLarge, id));
    std::uint32_t large = 0, medium = 0, small = 0;
    while (queue.Next()) ++large;
    EXPECT_EQ(large, threads <= 3 ? 1 : threads - 2);
    for (std::uint64_t id = 11; id <= 20; ++id) ASSERT_TRUE(queue.Push("a", kMedium, id));
    while (queue.Next()) ++medium;
    EXPECT_EQ(large + medium, std::max(1u, threads - 1));
    for (std::uint64_t id = 21; id <= 30; ++id) ASSERT_TRUE(queue.Push("a", kSmall, id));
    while (large + medium + small < threads) {
      const auto job = queue.Next();
      ASSERT_TRUE(job);
      EXPECT_EQ(job->size, Size::kSmall);
      ++small;
    }
    EXPECT_EQ(small, threads == 1 ? 0u : 1u) << threads;
  }
}

// Whatever came first: medium jobs, then large ones take what the medium ones have left.
TEST(FairQueue, LargeInputsBehindMediumOnesLeaveAThread) {
  for (std::uint32_t threads = 1; threads <= 8; ++threads) {
    for (std::uint64_t mediums = 0; mediums <= 10; ++mediums) {
      FairQueue queue({.threads = threads, .max_jobs = 100, .max_bytes = kRoomy});
      for (std::uint64_t id = 1; id <= mediums; ++id) ASSERT_TRUE(queue.Push("a", kMedium, id));
      std::uint32_t running = 0;
      while (queue.Next()) ++running;
      for (std::uint64_t id = 11; id <= 20; ++id) ASSERT_TRUE(queue.Push("a", kLarge, id));
      while (queue.Next()) ++running;
      EXPECT_LE(running, std::max(1u, threads - 1)) << mediums;
      ASSERT_TRUE(queue.Push("a", kSmall, 21));
      EXPECT_EQ(queue.HasNext(), threads > 1) << mediums;
    }
  }
}

// Two tenants that always have work get the same number of bytes, up to one job each. The sizes of
// their jobs within the class do not matter. A third tenant that comes now and then has its turn at
// once.
TEST(FairQueue, TenantsTakeTurnsByBytes) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    FairQueue queue({.threads = 1, .max_jobs = 256, .max_bytes = kRoomy});
    const std::size_t least = FairQueue::kSmallBytes + 1;
    std::map<std::uint64_t, std::pair<std::string, std::size_t>> jobs;
    std::map<std::string, std::size_t> served, waiting, largest;
    std::uint64_t next = 1;
    const auto push = [&](const std::string& tenant, std::size_t bytes) {
      if (!queue.Push(tenant, bytes, next)) return;
      jobs[next++] = {tenant, bytes};
      ++waiting[tenant];
      largest[tenant] = std::max(largest[tenant], bytes);
    };
    for (int turn = 0; turn < 500; ++turn) {
      while (waiting["many"] < 40) push("many", least + random() % 1000);
      while (waiting["few"] < 2) push("few", least + random() % (FairQueue::kMediumBytes - least));
      const std::uint64_t id = TakeAndEnd(queue);
      const auto& [tenant, bytes] = jobs.at(id);
      served[tenant] += bytes;
      --waiting[tenant];
      const auto many = static_cast<std::int64_t>(served["many"]);
      const auto few = static_cast<std::int64_t>(served["few"]);
      ASSERT_LE(std::abs(many - few), static_cast<std::int64_t>(largest["many"] + largest["few"]));
    }
    push("late", FairQueue::kMediumBytes);
    std::size_t before = 0;
    while (true) {
      const auto& [tenant, bytes] = jobs.at(TakeAndEnd(queue));
      if (tenant == "late") break;
      before += bytes;
    }
    EXPECT_LE(before, largest["many"] + largest["few"]);
  }
}

// A tenant that always comes back with the next large input does not get more than its share.
TEST(FairQueue, WhatATenantHadIsRemembered) {
  FairQueue queue({.threads = 3, .max_jobs = 100, .max_bytes = kRoomy});
  const std::size_t least = FairQueue::kMediumBytes + 1;
  std::map<std::uint64_t, bool> greedy;
  std::uint64_t next = 1;
  std::size_t had = 0, other = 0, waiting = 0;
  greedy[next] = true;
  ASSERT_TRUE(queue.Push("greedy", kLarge, next++));
  for (int turn = 0; turn < 1000; ++turn) {
    for (; waiting < 3; ++waiting) ASSERT_TRUE(queue.Push("other", least, next++));
    const auto job = queue.Next();
    ASSERT_TRUE(job);
    if (greedy.contains(job->id)) {
      had += kLarge;
      greedy[next] = true;
      ASSERT_TRUE(queue.Push("greedy", kLarge, next++));
    } else {
      other += least;
      --waiting;
    }
    queue.Done(job->size);
    ASSERT_LE(had, other + kLarge + least);
  }
}

// Any number of smaller jobs may come. A class that may run is passed at most kMaxPassed times in a
// row, and once more if the other larger class is due first.
TEST(FairQueue, NothingStarves) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    FairQueue queue({.threads = 1 + seed % 5, .max_jobs = 256, .max_bytes = kRoomy});
    std::vector<Size> running;
    std::map<std::uint64_t, Size> size_of;
    std::map<Size, std::size_t> waiting, passed;
    std::uint64_t next = 1;
    for (int turn = 0; turn < 2000; ++turn) {
      for (const std::size_t bytes : {kSmall, kMedium, kLarge}) {
        const Size size = FairQueue::SizeOf(bytes);
        while (waiting[size] < 5 && (size == Size::kSmall || random() % 2 == 0)) {
          const std::string tenant(1, static_cast<char>('a' + random() % 4));
          if (!queue.Push(tenant, bytes, next)) break;
          size_of[next++] = size;
          ++waiting[size];
        }
      }
      // The job ends at once, so only the order decides which job is next.
      const auto job = queue.Next();
      ASSERT_TRUE(job);
      ASSERT_EQ(size_of.at(job->id), job->size);
      queue.Done(job->size);
      --waiting[job->size];
      for (const Size size : {Size::kMedium, Size::kLarge}) {
        passed[size] = size == job->size || waiting[size] == 0 ? 0 : passed[size] + 1;
        ASSERT_LE(passed[size], FairQueue::kMaxPassed + 2);
      }
    }
  }
}

TEST(FairQueue, ATenantLeavesRoomForOthers) {
  FairQueue queue({.threads = 1, .max_jobs = 256, .max_bytes = 64u << 20});
  std::uint64_t id = 1;
  std::size_t first = 0, second = 0;
  while (queue.Push("first", 10, id++)) ++first;
  EXPECT_EQ(first, 192u);  // 3/4
  while (queue.Push("second", 10, id++)) ++second;
  EXPECT_GE(second, 48u);
  EXPECT_TRUE(queue.Push("third", 10, id++));
  while (TakeAndEnd(queue) != 0) {
  }
  EXPECT_EQ(queue.waiting_bytes(), 0u);

  first = second = 0;
  while (queue.Push("first", 4u << 20, id++)) ++first;
  EXPECT_EQ(first, 12u);  // 48 MiB
  while (queue.Push("second", 4u << 20, id++)) ++second;
  EXPECT_GE(second, 2u);
  EXPECT_TRUE(queue.Push("third", 1u << 20, id++));
}

// Both bounds always hold, and each accepted job comes out once. What a tenant holds is counted
// right, so a queue that has become empty accepts as much as a new one.
TEST(FairQueue, BoundsHoldUnderSeeds) {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const FairQueue::Limits limits{.threads = 1 + seed % 4, .max_jobs = 20, .max_bytes = 9'000'000};
    FairQueue queue(limits);
    std::map<std::uint64_t, std::size_t> waiting;
    std::vector<Size> running;
    std::uint64_t next = 1;
    for (int turn = 0; turn < 3000; ++turn) {
      switch (random() % 4) {
        case 0:
        case 1: {
          const std::size_t bytes = std::size_t{1} << random() % 23;
          const std::string tenant = std::to_string(random() % 1000);
          if (queue.Push(tenant, bytes, next)) waiting[next] = bytes;
          ++next;
          break;
        }
        case 2:
          if (running.size() < limits.threads) {
            if (const auto job = queue.Next()) {
              ASSERT_EQ(waiting.erase(job->id), 1u);
              running.push_back(job->size);
            }
          }
          break;
        default:
          if (!running.empty() && random() % 2 == 0) {
            queue.Done(running.back());
            running.pop_back();
          } else if (!waiting.empty() && random() % 4 == 0) {
            queue.Remove(waiting.begin()->first);
            waiting.erase(waiting.begin());
          }
      }
      std::size_t bytes = 0;
      for (const auto& [id, each] : waiting) bytes += each;
      ASSERT_EQ(queue.waiting(), waiting.size());
      ASSERT_EQ(queue.waiting_bytes(), bytes);
      ASSERT_LE(queue.waiting(), limits.max_jobs);
      ASSERT_LE(bytes, limits.max_bytes);
    }
    while (!running.empty()) {
      queue.Done(running.back());
      running.pop_back();
    }
    while (TakeAndEnd(queue) != 0) {
    }
    std::size_t let_in = 0;
    while (queue.Push("one", 1, next++)) ++let_in;
    EXPECT_EQ(let_in, 15u);
  }
}

}  // namespace
}  // namespace flotilla::router
