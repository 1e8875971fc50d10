// The twins of what a GPU does by itself, compared with formulas that say it in another way: whole
// matrices that are laid out as the tables of the PTX ISA have it.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cuda/ptx.h"
#include "tests/support/random.h"

namespace flotilla::kernels::cuda::simulated {
namespace {

using testing::Random;

constexpr uint64_t kSchedules[] = {0, 1, 2, 77};
constexpr int kWarps = 3;
constexpr int kThreads = kWarps * kWarp;

// ---- Products. PTX ISA 9.0, "Matrix Fragments for mma.m16n8k32": element i of a thread's
// fragment.

constexpr int kM = 16, kN = 8, kK = 32;

struct Place {
  int row, column;
};
Place OfA(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  return {i < 4 || (i >= 8 && i < 12) ? group : group + 8,
          i < 8 ? thread * 4 + (i & 3) : thread * 4 + (i & 3) + 16};
}
Place OfB(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  return {i < 4 ? thread * 4 + (i & 3) : thread * 4 + (i & 3) + 16, group};
}
Place OfD(int lane, int i) {
  const int group = lane >> 2, thread = lane % 4;
  return {i < 2 ? group : group + 8, thread * 2 + (i & 1)};
}

// The matrices of a warp.
struct Matrices {
  int64_t a[kM][kK];
  int64_t b[kK][kN];
  int64_t d[kM][kN];
};

struct Fragments {
  uint32_t a[4], b[2];
  int32_t d[4];
};
struct ProductArgs {
  Fragments* threads = nullptr;
};

template <bool kSigned>
void ProductKernel(const ProductArgs args) {
  Fragments& own = args.threads[Thread()];
  if constexpr (kSigned) MultiplyS8(own.d, own.a, own.b);
  if constexpr (!kSigned) MultiplyU8(own.d, own.a, own.b);
}

std::vector<Fragments> Scatter(const std::vector<Matrices>& warps) {
  std::vector<Fragments> threads(warps.size() * kWarp);
  const auto put = [](uint32_t* words, int i, int64_t value) {
    words[i / 4] |= static_cast<uint32_t>(value & 0xFF) << i % 4 * 8;
  };
  for (size_t t = 0; t < threads.size(); ++t) {
    const Matrices& m = warps[t / kWarp];
    const int lane = static_cast<int>(t) % kWarp;
    threads[t] = {};
    for (int i = 0; i < 16; ++i) put(threads[t].a, i, m.a[OfA(lane, i).row][OfA(lane, i).column]);
    for (int i = 0; i < 8; ++i) put(threads[t].b, i, m.b[OfB(lane, i).row][OfB(lane, i).column]);
    for (int i = 0; i < 4; ++i) {
      threads[t].d[i] = static_cast<int32_t>(m.d[OfD(lane, i).row][OfD(lane, i).column]);
    }
  }
  return threads;
}

// d + a * b. What does not fit wraps, since the instruction is without .satfinite.
int32_t Product(const Matrices& m, int row, int column) {
  int64_t sum = m.d[row][column];
  for (int k = 0; k < kK; ++k) sum += m.a[row][k] * m.b[k][column];
  return static_cast<int32_t>(static_cast<uint32_t>(sum));
}

template <bool kSigned>
void ExpectProducts(const std::vector<Matrices>& warps) {
  for (const uint64_t seed : kSchedules) {
    std::vector<Fragments> threads = Scatter(warps);
    SimulatedStream stream{.seed = seed};
    ASSERT_EQ((Launch<ProductKernel<kSigned>, kThreads, NothingShared>(
                  "product", {}, ProductArgs{threads.data()}, &stream)),
              0);
    for (int t = 0; t < kThreads; ++t) {
      for (int i = 0; i < 4; ++i) {
        const Place at = OfD(t % kWarp, i);
        ASSERT_EQ(threads[t].d[i], Product(warps[t / kWarp], at.row, at.column))
            << "thread " << t << ", element " << i << ", schedule " << seed;
      }
    }
  }
}

// Random bytes, or the ends of their range.
template <bool kSigned>
std::vector<Matrices> RandomMatrices(Random& random) {
  constexpr int kLow = kSigned ? -128 : 0, kHigh = kSigned ? 127 : 255;
  const bool ends = random.OneIn(3);
  const auto draw = [&](int low, int high) {
    return ends ? (random.OneIn(2) ? low : high) : random.Int(low, high);
  };
  std::vector<Matrices> warps(kWarps);
  for (Matrices& m : warps) {
    for (auto& row : m.a) {
      for (int64_t& x : row) x = draw(kLow, kHigh);
    }
    for (auto& row : m.b) {
      for (int64_t& x : row) x = draw(-128, 127);
    }
    for (auto& row : m.d) {
      for (int64_t& x : row) x = random.Int(-1'000'000'000, 1'000'000'000);
    }
  }
  return warps;
}

TEST(Ptx, MultiplyS8IsAProductOfMatrices) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    ExpectProducts<true>(RandomMatrices<true>(random));
  }
}

TEST(Ptx, MultiplyU8IsAProductOfMatrices) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    ExpectProducts<false>(RandomMatrices<false>(random));
  }
}

TEST(Ptx, SumsOfProductsWrap) {
  Random random(1);
  std::vector<Matrices> warps = RandomMatrices<true>(random);
  for (Matrices& m : warps) {
    for (auto& row : m.d) {
      for (int64_t& x : row) {
        x = random.OneIn(2) ? std::numeric_limits<int32_t>::max()
                            : std::numeric_limits<int32_t>::min();
      }
    }
  }
  ExpectProducts<true>(warps);
}

// ---- Bytes.

TEST(Ptx, BytePermuteTakesBytesByNumber) {
  Random random(7);
  for (int round = 0; round < 20'000; ++round) {
    const auto low = static_cast<uint32_t>(random.Next()),
               high = static_cast<uint32_t>(random.Next());
    const auto selector = static_cast<uint32_t>(random.Next());
    const uint32_t words[2] = {low, high};
    const uint32_t result = BytePermute(low, high, selector);
    uint32_t places = selector;
    for (int i = 0; i < 4; ++i, places /= 16) {
      const uint32_t from = places % 8;
      ASSERT_EQ(result / (1u << 8 * i) % 256, words[from / 4] / (1u << from % 4 * 8) % 256)
          << std::hex << low << " " << high << " " << selector;
    }
  }
}

// ---- Shuffles: every lane's value, by every mask or distance, in one launch. That the calls
// follow each other at once is part of the test.

template <class T>
struct ShuffleArgs {
  const T* in = nullptr;  // [threads]
  T* by_xor = nullptr;    // [threads, 32]
  T* down = nullptr;      // [threads, 32]
};

template <class T>
void ShuffleKernel(const ShuffleArgs<T> args) {
  const T own = args.in[Thread()];
  for (int by = 0; by < kWarp; ++by) {
    args.by_xor[Thread() * kWarp + by] = ShuffleXor(own, by);
    args.down[Thread() * kWarp + by] = ShuffleDown(own, by);
  }
}

template <class T>
void ExpectShuffles() {
  Random random(3);
  std::vector<T> in;
  for (int i = 0; i < kThreads; ++i) in.push_back(static_cast<T>(random.Int(-99'999, 99'999)));
  for (const uint64_t seed : kSchedules) {
    std::vector<T> by_xor(kThreads * kWarp), down(kThreads * kWarp);
    SimulatedStream stream{.seed = seed};
    ASSERT_EQ((Launch<ShuffleKernel<T>, kThreads, NothingShared>(
                  "shuffle", {}, ShuffleArgs<T>{in.data(), by_xor.data(), down.data()}, &stream)),
              0);
    for (int t = 0; t < kThreads; ++t) {
      const int first = t - t % kWarp, lane = t % kWarp;
      for (int by = 0; by < kWarp; ++by) {
        ASSERT_EQ(by_xor[t * kWarp + by], in[first + (lane ^ by)]) << t << " ^ " << by;
        ASSERT_EQ(down[t * kWarp + by], in[lane + by < kWarp ? t + by : t]) << t << " + " << by;
      }
    }
  }
}

TEST(Ptx, ShufflesGiveTheValuesOfOtherLanes) {
  ExpectShuffles<int32_t>();
  ExpectShuffles<uint32_t>();
  ExpectShuffles<float>();
  ExpectShuffles<int64_t>();
}

}  // namespace
}  // namespace flotilla::kernels::cuda::simulated
