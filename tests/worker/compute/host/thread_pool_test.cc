#include "worker/compute/host/thread_pool.h"

#include <atomic>
#include <ctime>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/rt/cpu_quota.h"

namespace flotilla::worker {
namespace {

// Other threads do the work of a thread that is busy. One item ends only when all others have
// ended, so one thread must do the rest.
TEST(ThreadPoolTest, NobodyWaitsForAThreadThatIsBusy) {
  ThreadPool pool(2);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> done{0};
    pool.ParallelFor(8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        while (i == 0 && done < 7) std::this_thread::yield();
        ++done;
      }
    });
    ASSERT_EQ(done, 8);
  }
}

TEST(ThreadPoolTest, RangesAndItemsCoverEachIndexOnce) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (int64_t count : {0, 1, 2, 3, 17, 1000}) {
      std::vector<int> seen(count);  // each index belongs to one thread
      pool.ParallelFor(count, [&](int64_t begin, int64_t end) {
        ASSERT_LT(begin, end);
        for (int64_t i = begin; i < end; ++i) ++seen[i];
      });
      pool.ParallelItems(count, [&](int64_t i) { ++seen[i]; });
      EXPECT_EQ(seen, std::vector<int>(count, 2)) << threads << " threads, " << count;
    }
  }
}

// The next phase reads on other threads what one phase has written.
TEST(ThreadPoolTest, PhasesSeeEachOthersWrites) {
  ThreadPool pool(4);
  std::vector<int64_t> values(64, 0);
  for (int64_t phase = 1; phase <= 2000; ++phase) {
    pool.ParallelFor(64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) values[i] += phase;
    });
    std::atomic<int64_t> sum{0};
    pool.ParallelItems(64, [&](int64_t i) { sum += values[i]; });
    ASSERT_EQ(sum, 64 * phase * (phase + 1) / 2);
  }
}

// A pool may end while a thread still begins the last phase. The thread must see the end then.
// Many pools at a time suspend some threads just there.
TEST(ThreadPoolTest, EndsWhileThreadsAreLate) {
  std::vector<std::thread> owners;
  for (int owner = 0; owner < 8; ++owner) {
    owners.emplace_back([] {
      for (int round = 0; round < 5000; ++round) {
        ThreadPool pool(2 + round % 3);
        std::atomic<int> done{0};
        pool.ParallelItems(2, [&](int64_t) { ++done; });
        ASSERT_EQ(done, 2);
      }
    });
  }
  for (std::thread& owner : owners) owner.join();
}

TEST(ThreadPoolTest, IdlePoolUsesNoCpu) {
  ThreadPool pool(AvailableCpus());
  pool.ParallelItems(64, [](int64_t) {});
  const auto cpu_ns = [] {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
  };
  const int64_t before = cpu_ns();
  // A spinning thread shows only after some real time.
  const timespec wait{0, 200'000'000};
  nanosleep(&wait, nullptr);
  EXPECT_LT(cpu_ns() - before, 20'000'000) << "more than a tenth of a core";
}

}  // namespace
}  // namespace flotilla::worker
