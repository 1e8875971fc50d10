// The machine that runs kernels on the CPU: what threads see, in which order they run, and what it
// reports about kernels that are wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/simt.h"

namespace flotilla::kernels::cuda::simulated {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint64_t kSchedules[] = {0, 1, 2, 77, 0xFFFF'FFFF'FFFF'FFFF};

// The kernels here have this many threads.
constexpr int kThreads = 96;

struct Args {
  int* out = nullptr;
  std::vector<int>* log = nullptr;
  int block_x = 0, block_y = 0, thread = 0;  // who does what is wrong

  bool IsCulprit() const {
    return BlockX() == block_x && BlockY() == block_y && Thread() == thread;
  }
};
struct Numbers {
  float values[kThreads];
};

template <auto kKernel>
int Start(const Grid& grid, const Args& args, SimulatedStream& stream) {
  return Launch<kKernel, kThreads, Numbers>("a_kernel", grid, args, &stream);
}

// What a block of the kernel leaves under a schedule.
template <auto kKernel>
std::vector<int> Results(uint64_t seed) {
  std::vector<int> out(kThreads);
  SimulatedStream stream{.seed = seed};
  EXPECT_EQ(Start<kKernel>({}, {.out = out.data()}, stream), 0);
  return out;
}

// ---- What threads see.

FLOTILLA_KERNEL(kThreads) WhereKernel(const Args args) {
  args.out[(BlockY() * 700 + BlockX()) * kThreads + Thread()] +=
      BlockY() * 1'000'000 + BlockX() * 1'000 + Thread();
}

TEST(Machine, EveryThreadOfEveryBlockRunsOnce) {
  for (const uint64_t seed : kSchedules) {
    std::vector<int> out(size_t{700} * 5 * kThreads);
    SimulatedStream stream{.seed = seed};
    ASSERT_EQ(Start<WhereKernel>({.x = 700, .y = 5}, {.out = out.data()}, stream), 0);
    for (int i = 0; i < static_cast<int>(out.size()); ++i) {
      const int block = i / kThreads;
      ASSERT_EQ(out[i], block / 700 * 1'000'000 + block % 700 * 1'000 + i % kThreads) << i;
    }
  }
}

TEST(Machine, AGridWithoutBlocksIsNoError) {
  SimulatedStream stream;
  EXPECT_EQ(Start<WhereKernel>({.x = 0}, {}, stream), 0);
  EXPECT_EQ(Start<WhereKernel>({.x = 3, .y = 0}, {}, stream), 0);
}

// Each block finds what nobody wrote, and leaves numbers.
FLOTILLA_KERNEL(kThreads) FreshKernel(const Args args) {
  Numbers& shared = Shared<Numbers>();
  int numbers = 0;
  for (const float x : shared.values) numbers += !std::isnan(x);
  args.out[BlockX() * kThreads + Thread()] = numbers;
  SyncThreads();
  shared.values[Thread()] = 1;
}

TEST(Machine, SharedMemoryBeginsWithNan) {
  for (const uint64_t seed : kSchedules) {
    std::vector<int> out(30 * kThreads, -1);
    SimulatedStream stream{.seed = seed};
    ASSERT_EQ(Start<FreshKernel>({.x = 30}, {.out = out.data()}, stream), 0);
    EXPECT_THAT(out, Each(0));
  }
}

// Turns numbers round, twice, so that each barrier is needed.
template <bool kFirst, bool kSecond>
FLOTILLA_KERNEL(kThreads)
ReverseKernel(const Args args) {
  Numbers& shared = Shared<Numbers>();
  shared.values[Thread()] = static_cast<float>(Thread());
  if (kFirst) SyncThreads();
  const float reverse = shared.values[kThreads - 1 - Thread()];
  if (kSecond) SyncThreads();
  shared.values[Thread()] = 1'000 + reverse;
  SyncThreads();
  const float again = shared.values[kThreads - 1 - Thread()];
  args.out[Thread()] = std::isnan(again) ? -1 : static_cast<int>(again);
}

TEST(Machine, ThreadsSeeWhatOthersWroteBeforeABarrier) {
  std::vector<int> expected(kThreads);
  std::iota(expected.begin(), expected.end(), 1'000);
  for (const uint64_t seed : kSchedules) {
    EXPECT_EQ((Results<ReverseKernel<true, true>>(seed)), expected);
  }
}

TEST(Machine, AMissingBarrierShows) {
  const std::vector<int> expected = Results<ReverseKernel<true, true>>(0);
  std::set<std::vector<int>> without_first, without_second;
  for (const uint64_t seed : kSchedules) {
    without_first.insert(Results<ReverseKernel<false, true>>(seed));
    without_second.insert(Results<ReverseKernel<true, false>>(seed));
  }
  EXPECT_FALSE(without_first.contains(expected));
  EXPECT_FALSE(without_second.contains(expected));
  // And each schedule has errors of its own.
  EXPECT_EQ(without_first.size(), std::size(kSchedules));
  EXPECT_EQ(without_second.size(), std::size(kSchedules));
}

// ---- Schedules.

FLOTILLA_KERNEL(kThreads) LogKernel(const Args args) {
  args.log->push_back(Thread());
  SyncThreads();
  args.log->push_back(Thread());
}

std::vector<int> Order(uint64_t seed) {
  std::vector<int> log;
  SimulatedStream stream{.seed = seed};
  EXPECT_EQ(Start<LogKernel>({}, {.log = &log}, stream), 0);
  EXPECT_EQ(log.size(), 2u * kThreads);
  return log;
}

TEST(Machine, TheSeedChoosesTheOrder) {
  std::vector<int> ascending(2 * kThreads);
  for (int i = 0; i < 2 * kThreads; ++i) ascending[i] = i % kThreads;
  EXPECT_EQ(Order(0), ascending);
  EXPECT_EQ(Order(1), std::vector<int>(ascending.rbegin(), ascending.rend()));

  const std::vector<int> random = Order(2);
  EXPECT_EQ(Order(2), random);
  EXPECT_NE(Order(3), random);
  const auto middle = random.begin() + kThreads;
  const std::vector<int> before(random.begin(), middle), behind(middle, random.end());
  EXPECT_NE(before, behind);
  for (const std::vector<int>& part : {before, behind}) {
    EXPECT_EQ(std::set<int>(part.begin(), part.end()).size(), size_t{kThreads});
  }
}

// ---- Errors. All threads but one do the same.

FLOTILLA_KERNEL(kThreads) ReturnsKernel(const Args args) {
  if (args.IsCulprit()) return;
  SyncThreads();
  args.out[Thread()] = 1;
}
FLOTILLA_KERNEL(kThreads) MissesShuffleKernel(const Args args) {
  if (args.IsCulprit()) return;
  args.out[Thread()] = ShuffleXor(Thread(), 1);
}
FLOTILLA_KERNEL(kThreads) OtherShuffleKernel(const Args args) {
  args.out[Thread()] = args.IsCulprit() ? ShuffleDown(Thread(), 1) : ShuffleXor(Thread(), 1);
}
FLOTILLA_KERNEL(kThreads) SyncInsteadKernel(const Args args) {
  if (args.IsCulprit()) {
    SyncThreads();
    ShuffleXor(0, 1);
  } else {
    ShuffleXor(0, 1);
    SyncThreads();
  }
}
FLOTILLA_KERNEL(kThreads) OneMoreBarrierKernel(const Args args) {
  SyncThreads();
  if (args.IsCulprit()) SyncThreads();
}

// What is reported of thread 41 of block (2, 1), under each schedule.
template <auto kKernel>
void ExpectFault(int thread, const std::string& what) {
  for (const uint64_t seed : kSchedules) {
    std::vector<int> out(kThreads);
    SimulatedStream stream{.seed = seed};
    const Args args{.out = out.data(), .block_x = 2, .block_y = 1, .thread = 41};
    ASSERT_EQ(Start<kKernel>({.x = 4, .y = 3}, args, stream), kFault) << seed;
    ASSERT_TRUE(stream.fault.has_value());
    EXPECT_EQ(Describe(*stream.fault),
              "a_kernel, block (2, 1), thread " + std::to_string(thread) + ": " + what)
        << seed;
  }
}

TEST(Machine, AThreadThatMissesABarrierIsReported) {
  ExpectFault<ReturnsKernel>(
      41, "it ended, while 95 threads wait in SyncThreads and 0 for lanes of their warps");
}

TEST(Machine, ALaneThatMissesAShuffleIsReported) {
  // Other warps have ended by then, which is no error of theirs: the first thread that ended is
  // theirs.
  ExpectFault<MissesShuffleKernel>(
      0, "it ended, while 0 threads wait in SyncThreads and 31 for lanes of their warps");
}

TEST(Machine, LanesThatMakeDifferentCallsAreReported) {
  ExpectFault<OtherShuffleKernel>(41, "it makes another call than the first lane of its warp");
}

TEST(Machine, ABarrierInPlaceOfAShuffleIsReported) {
  ExpectFault<SyncInsteadKernel>(
      32, "it waits for its warp: 65 threads wait in SyncThreads and 31 for lanes of their warps");
}

TEST(Machine, ABarrierOfOneThreadIsReported) {
  ExpectFault<OneMoreBarrierKernel>(
      0, "it ended, while 1 threads wait in SyncThreads and 0 for lanes of their warps");
}

TEST(Machine, AStreamWithAFaultDoesNothingMore) {
  std::vector<int> log, out(kThreads);
  SimulatedStream stream;
  EXPECT_EQ(Start<LogKernel>({}, {.log = &log}, stream), 0);
  EXPECT_THAT(log, Not(IsEmpty()));
  // The blocks behind the first one do not run.
  EXPECT_EQ(Start<ReturnsKernel>({.x = 3}, {.out = out.data(), .thread = 5}, stream), kFault);
  EXPECT_THAT(out, Each(0));
  log.clear();
  EXPECT_EQ(Start<LogKernel>({}, {.log = &log}, stream), kFault);
  EXPECT_THAT(log, IsEmpty());
  ASSERT_TRUE(stream.fault.has_value());
  EXPECT_THAT(Describe(*stream.fault), HasSubstr("block (0, 0), thread 5: it ended"));

  SimulatedStream other;
  EXPECT_EQ(Start<LogKernel>({}, {.log = &log}, other), 0);
}

// Objects of threads that never go on.
struct Counted {
  explicit Counted(int& count) : living(count) { ++living; }
  ~Counted() { --living; }
  int& living;
};
FLOTILLA_KERNEL(kThreads) HoldsKernel(const Args args) {
  const Counted counted(*args.out);
  if (args.IsCulprit()) return;
  SyncThreads();
}

TEST(Machine, ThreadsOfABlockWithAFaultAreUnwound) {
  int living = 0;
  SimulatedStream stream;
  EXPECT_EQ(Start<HoldsKernel>({}, {.out = &living}, stream), kFault);
  EXPECT_EQ(living, 0);
}

// ---- Several threads of the host.

FLOTILLA_KERNEL(kThreads) SumKernel(const Args args) {
  Numbers& shared = Shared<Numbers>();
  shared.values[Thread()] = static_cast<float>(BlockX());
  SyncThreads();
  float sum = 0;
  for (const float x : shared.values) sum += x;
  args.out[BlockX() * kThreads + Thread()] = static_cast<int>(sum) + ShuffleXor(Thread(), 3);
}

TEST(Machine, ThreadsOfTheHostSimulateAtOnce) {
  constexpr int kBlocks = 500;
  const auto run = [](uint64_t seed, std::vector<int>* out) {
    out->resize(size_t{kBlocks} * kThreads);
    SimulatedStream stream{.seed = seed};
    if (Start<SumKernel>({.x = kBlocks}, {.out = out->data()}, stream) != 0) out->clear();
  };
  std::vector<int> expected, first, second;
  run(0, &expected);
  std::thread other(run, 8, &first);
  run(9, &second);
  other.join();
  EXPECT_EQ(expected[3 * kThreads + 7], 3 * kThreads + (7 ^ 3));
  EXPECT_EQ(first, expected);
  EXPECT_EQ(second, expected);
}

}  // namespace
}  // namespace flotilla::kernels::cuda::simulated
