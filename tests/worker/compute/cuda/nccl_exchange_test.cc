// NcclExchange over simulated devices and a fake of NCCL, with a thread for each rank; and what the
// real library says of itself, where there is one.
#include "worker/compute/cuda/nccl_exchange.h"

#include <atomic>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/ops.h"
#include "tests/kernels/cuda/host_ops.h"
#include "tests/support/fake_nccl.h"
#include "worker/compute/host/split_weights.h"
#include "worker/device/simulated_device.h"

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>
#define FLOTILLA_HAS_NCCL_H
#endif

namespace flotilla::worker {
namespace {

using testing::FakeNccl;
using testing::FakeNcclOptions;
using ::testing::HasSubstr;
using Queue = Device::Queue;

#ifdef FLOTILLA_HAS_NCCL_H
static_assert(sizeof(NcclApi::UniqueId) == sizeof(ncclUniqueId));
static_assert(offsetof(NcclApi::Config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(NcclApi::Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(NcclApi::Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(NcclApi::Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(NcclApi::Config, cga_cluster_size) ==
              offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(NcclApi::Config, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(NcclApi::Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(NcclApi::Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(NcclApi::Config, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(NcclApi::kSuccess == ncclSuccess && NcclApi::kInProgress == ncclInProgress);
static_assert(NcclApi::kFloat32 == ncclFloat32 && NCCL_CONFIG_UNDEF_INT == INT_MIN);
#endif

// The ranks of a group, each with a device of its own. What they exchange are random numbers, with
// the sums that the host makes of them.
class Group {
 public:
  Group(ParallelShape shape, const FakeNccl& nccl, std::int64_t whole_floats,
        absl::Duration limit = absl::Seconds(30))
      : shape_(shape) {
    for (std::uint32_t rank = 0; rank < shape.ranks(); ++rank) {
      devices_.push_back(std::make_unique<SimulatedDevice>(
          SimulatedDeviceOptions{.seed = rank + 1, .ops = &kernels::cuda::HostOps(), .id = ""}));
      exchanges_.push_back(std::make_unique<NcclExchange>(
          NcclExchangeOptions{.api = nccl.api(),
                              .shape = shape,
                              .rank = rank,
                              .ended = [this] { return ended_.load(); },
                              .whole_floats = whole_floats,
                              .call_limit = limit},
          *devices_.back()));
    }
    nccl.api()->get_unique_id(&id_);
  }

  // Calls fn(rank) for all ranks at once. Returns what they return.
  std::vector<absl::Status> OnAll(const std::function<absl::Status(std::uint32_t)>& fn) {
    std::vector<absl::Status> results(shape_.ranks());
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < shape_.ranks(); ++rank) {
      threads.emplace_back([&, rank] { results[rank] = fn(rank); });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  std::vector<absl::Status> Join() {
    return OnAll([this](std::uint32_t rank) { return exchange(rank).Join(id_); });
  }

  // Puts floats into memory of the rank's device.
  Device::Memory Put(std::uint32_t rank, const std::vector<float>& values) {
    Device& device = *devices_[rank];
    const std::size_t bytes = std::max<std::size_t>(values.size(), 1) * sizeof(float);
    Device::Memory memory = *device.Allocate(bytes), pinned = *device.AllocatePinned(bytes);
    std::memcpy(pinned.data(), values.data(), values.size() * sizeof(float));
    device.Upload(Queue::kCompute, memory.data(), pinned.data(), bytes);
    EXPECT_TRUE(device.Synchronize(device.Record(Queue::kCompute)).ok());
    return memory;
  }

  // Finishes a step: gets floats from the device, with the error of the exchange if it has one.
  absl::Status Get(std::uint32_t rank, const float* from, std::int64_t count,
                   std::vector<float>* values) {
    Device& device = *devices_[rank];
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
    Device::Memory pinned = *device.AllocatePinned(bytes);
    device.Download(Queue::kCompute, pinned.data(), from, bytes);
    const absl::Status status = device.Synchronize(device.Record(Queue::kCompute));
    values->assign(pinned.as<float>(), pinned.as<float>() + count);
    exchange(rank).EndStep();
    const absl::Status failed = exchange(rank).status();
    return failed.ok() ? status : failed;
  }

  NcclExchange& exchange(std::uint32_t rank) { return *exchanges_[rank]; }
  Device& device(std::uint32_t rank) { return *devices_[rank]; }
  void End() { ended_ = true; }

 private:
  const ParallelShape shape_;
  NcclApi::UniqueId id_;
  std::atomic<bool> ended_{false};
  std::vector<std::unique_ptr<SimulatedDevice>> devices_;
  std::vector<std::unique_ptr<NcclExchange>> exchanges_;
};

std::vector<float> Random(std::mt19937& random, std::int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random) * 1e3f;
  return values;
}

// A sum of all stages' ranks, whose split numbers are `splits`; then the residual to the next
// stage.
struct Round {
  Round(ParallelShape the_shape, const std::vector<std::uint32_t>& splits, std::int64_t the_rows,
        std::int64_t the_columns, std::uint32_t seed)
      : shape(the_shape), rows(the_rows), columns(the_columns) {
    std::mt19937 random(seed);
    std::vector<IndexRange> ranges;
    std::uint32_t all = 0;
    for (const std::uint32_t count : splits) {
      ranges.push_back({all, all + count});
      all += count;
    }
    tree = MakeSumTree(ranges, all);
    for (std::uint32_t rank = 0; rank < shape.ranks(); ++rank) {
      parts.push_back(
          Random(random, DeviceExchange::PartsOf(tree, rank % shape.tensor) * rows * columns));
    }
  }

  std::vector<float> Expected(std::uint32_t stage) const {
    std::vector<const float*> all;
    for (std::uint32_t t = 0; t < shape.tensor; ++t) {
      all.push_back(parts[stage * shape.tensor + t].data());
    }
    std::vector<float> sum(static_cast<std::size_t>(rows * columns));
    AddParts(kernels::GetOps(kernels::Isa::kReference), tree, all, rows, columns, 0, rows,
             /*accumulate=*/false, sum.data());
    return sum;
  }

  // What a rank does. Checks the bits if all is well.
  absl::Status Run(Group& group, std::uint32_t rank) const {
    NcclExchange& exchange = group.exchange(rank);
    Arena pinned(group.device(rank), /*pinned=*/true);
    const Device::Memory own = group.Put(rank, parts[rank]);
    const Device::Memory residual =
        group.Put(rank, std::vector<float>(static_cast<std::size_t>(rows * columns)));
    if (absl::Status status = exchange.Reserve(tree, rows, columns); !status.ok()) return status;
    exchange.BeginStep();
    const std::uint32_t stage = rank / shape.tensor;
    absl::Status status;
    if (stage > 0) {
      status.Update(exchange.ReceiveResidual(residual.as<float>(), rows * columns, pinned));
    }
    const auto total = exchange.Sum(tree, own.as<float>(), rows, columns);
    status.Update(total.status());
    if (total.ok() && stage + 1 < shape.pipeline) {
      status.Update(exchange.SendResidual(*total, rows * columns, pinned));
    }
    std::vector<float> sum, received;
    const float* const from = total.ok() ? *total : residual.as<float>();
    status.Update(group.Get(rank, from, rows * columns, &sum));
    exchange.BeginStep();
    status.Update(group.Get(rank, residual.as<float>(), rows * columns, &received));
    if (!status.ok()) return status;
    EXPECT_EQ(std::memcmp(sum.data(), Expected(stage).data(), sum.size() * sizeof(float)), 0)
        << "the sum of rank " << rank;
    if (stage > 0) {
      EXPECT_EQ(received, Expected(stage - 1)) << "the residual of rank " << rank;
    }
    return status;
  }

  ParallelShape shape;
  std::int64_t rows, columns;
  SumTree tree;
  std::vector<std::vector<float>> parts;  // of each rank: [its parts, rows, columns]
};

struct Layout {
  ParallelShape shape;
  std::vector<std::uint32_t> splits;  // of each rank of a stage
};
const Layout kLayouts[] = {{{.tensor = 2, .pipeline = 1}, {2, 2}},
                           {{2, 1}, {3, 5}},
                           {{3, 1}, {2, 3, 3}},
                           {{3, 1}, {7, 1, 3}},
                           {{1, 2}, {4}},
                           {{2, 2}, {3, 1}},
                           {{4, 1}, {5, 6, 1, 3}}};

TEST(NcclExchangeTest, SumsHaveTheBitsOfTheHostInEveryLayoutOnBothSidesOfTheSize) {
  std::uint32_t seed = 1;
  for (const Layout& layout : kLayouts) {
    for (const std::int64_t whole : {std::int64_t{0}, std::int64_t{1} << 20}) {
      for (const int looks : {0, 5}) {
        SCOPED_TRACE(absl::StrCat("tp ", layout.shape.tensor, ", pp ", layout.shape.pipeline,
                                  ", whole ", whole, ", seed ", seed));
        FakeNccl nccl({.seed = seed, .most_looks = looks});
        Group group(layout.shape, nccl, whole);
        for (const absl::Status& status : group.Join()) ASSERT_TRUE(status.ok()) << status;
        // 1 float: slices of nothing; 3 x 37: slices of several sizes.
        for (const auto& [rows, columns] : {std::pair{1, 1}, {3, 37}, {5, 64}}) {
          const Round round(layout.shape, layout.splits, rows, columns, seed++);
          const auto results =
              group.OnAll([&](std::uint32_t rank) { return round.Run(group, rank); });
          for (const absl::Status& status : results) ASSERT_TRUE(status.ok()) << status;
        }
        EXPECT_GT(nccl.messages(), 0);
        for (std::uint32_t rank = 0; rank < layout.shape.ranks(); ++rank) {
          EXPECT_EQ(nccl.aborts(static_cast<int>(rank)), 0);
        }
      }
    }
  }
}

TEST(NcclExchangeTest, SlicesMoveTwoOfRanksOfTheBytes) {
  std::int64_t floats[2];
  for (const bool whole : {false, true}) {
    FakeNccl nccl;
    Group group({4, 1}, nccl, whole ? 1 << 20 : 0);
    for (const absl::Status& status : group.Join()) ASSERT_TRUE(status.ok()) << status;
    const std::int64_t tried = nccl.floats();
    EXPECT_EQ(tried, 4 * 3);  // each way
    const Round round({4, 1}, {1, 1, 1, 1}, 4, 256, 1);
    for (const absl::Status& status :
         group.OnAll([&](std::uint32_t rank) { return round.Run(group, rank); })) {
      ASSERT_TRUE(status.ok()) << status;
    }
    floats[whole ? 1 : 0] = nccl.floats() - tried;
  }
  EXPECT_EQ(floats[1], 4 * 3 * 1024);
  EXPECT_EQ(floats[0], floats[1] * 2 / 4);
}

// A rank that hangs at any of its calls: the others see that the group has ended, or that the call
// takes too long, and nobody waits any more.
TEST(NcclExchangeTest, NobodyWaitsForARankThatDiesAtAnyCall) {
  for (const Layout& layout : {kLayouts[1], kLayouts[4], kLayouts[5]}) {
    for (int call = 1; call <= 4; ++call) {
      for (const bool ends : {true, false}) {
        SCOPED_TRACE(absl::StrCat("tp ", layout.shape.tensor, ", call ", call, ends));
        FakeNccl nccl({.seed = 3, .most_looks = 2});
        Group group(layout.shape, nccl, /*whole_floats=*/0,
                    ends ? absl::Seconds(60) : absl::Milliseconds(100));
        nccl.DieAt(0, call);
        const absl::Time begin = absl::Now();
        std::thread agent([&] {
          if (!ends) return;
          while (nccl.calls(0) < call && absl::Now() < begin + absl::Seconds(1)) {
            absl::SleepFor(absl::Milliseconds(1));
          }
          group.End();
        });
        const Round round(layout.shape, layout.splits, 3, 37, 1);
        const auto results = group.OnAll([&](std::uint32_t rank) {
          absl::Status status;
          status.Update(group.exchange(rank).Join([&] {
            NcclApi::UniqueId id;
            (void)nccl.api()->get_unique_id(&id);
            return id;
          }()));
          for (int i = 0; i < 4 && status.ok(); ++i) status = round.Run(group, rank);
          return status;
        });
        agent.join();
        EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
        for (const absl::Status& status : results) {
          EXPECT_EQ(status.code(),
                    ends ? absl::StatusCode::kUnavailable : absl::StatusCode::kDeadlineExceeded)
              << status;
        }
        for (std::uint32_t rank = 0; rank < layout.shape.ranks(); ++rank) {
          EXPECT_EQ(nccl.aborts(static_cast<int>(rank)), 1);
        }
      }
    }
  }
}

TEST(NcclExchangeTest, ASendOfAnotherCountThanItsReceiveIsAnErrorThatNamesBoth) {
  FakeNccl nccl;
  Group group({1, 2}, nccl, 0);
  for (const absl::Status& status : group.Join()) ASSERT_TRUE(status.ok()) << status;
  const auto results = group.OnAll([&](std::uint32_t rank) {
    const Device::Memory memory = group.Put(rank, std::vector<float>(20));
    Arena pinned(group.device(rank), true);
    group.exchange(rank).BeginStep();
    (void)(rank == 0 ? group.exchange(0).SendResidual(memory.as<float>(), 12, pinned)
                     : group.exchange(1).ReceiveResidual(memory.as<float>(), 10, pinned));
    std::vector<float> values;
    return group.Get(rank, memory.as<float>(), 20, &values);
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr("residual: invalid usage (rank 0 sends 12 floats, and rank 1 receives 10)"));
  }
}

// Waits for the rank's watchdog.
absl::Status AwaitFailure(NcclExchange& exchange) {
  for (int i = 0; i < 5000 && exchange.status().ok(); ++i) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  return exchange.status();
}

TEST(NcclExchangeTest, TheWatchdogSeesErrorsOfWorkAndTheEndOfTheGroupWhileAStepIsUnderWay) {
  for (const bool ends : {false, true}) {
    FakeNccl nccl;
    Group group({2, 1}, nccl, 0);
    for (const absl::Status& status : group.Join()) ASSERT_TRUE(status.ok()) << status;
    if (ends) group.End();
    if (!ends) nccl.FailLater(1);
    // Nothing is under way: the watchdog sleeps.
    absl::SleepFor(absl::Milliseconds(120));
    EXPECT_TRUE(group.exchange(1).status().ok());
    group.exchange(1).BeginStep();
    const absl::Status status = AwaitFailure(group.exchange(1));
    EXPECT_EQ(status, ends ? absl::UnavailableError("another rank of the group has failed")
                           : absl::InternalError("NCCL failed in work that it has begun: "
                                                 "remote process exited"));
    EXPECT_EQ(nccl.aborts(1), 1);
    EXPECT_EQ(nccl.aborts(0), 0);
  }
}

TEST(NcclExchangeTest, AbortEndsTheWaitOfJoinAndOfAStepAndAbortsOnce) {
  for (const bool joining : {true, false}) {
    FakeNccl nccl;
    {
      Group group({2, 1}, nccl, 0);
      const Round round({2, 1}, {1, 1}, 3, 37, 1);
      if (!joining) {
        for (const absl::Status& status : group.Join()) ASSERT_TRUE(status.ok()) << status;
      }
      const absl::Time begin = absl::Now();
      const int before = nccl.calls(0);
      std::thread aborter([&] {
        while (nccl.calls(0) == before) absl::SleepFor(absl::Milliseconds(1));
        group.exchange(0).Abort();
        group.exchange(0).Abort();
      });
      // Rank 1 does not come.
      NcclApi::UniqueId id;
      (void)nccl.api()->get_unique_id(&id);
      const absl::Status status = joining ? group.exchange(0).Join(id) : round.Run(group, 0);
      aborter.join();
      EXPECT_EQ(status, absl::CancelledError("the exchange was aborted"));
      EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
      EXPECT_EQ(nccl.aborts(0), 1);
      // No call comes behind the abort.
      const int calls = nccl.calls(0);
      EXPECT_FALSE(round.Run(group, 0).ok());
      EXPECT_EQ(nccl.calls(0), calls);
    }
    EXPECT_EQ(nccl.aborts(0), 1);
    EXPECT_EQ(nccl.aborts(1), joining ? 0 : 1);
  }
}

// ---- The library.

TEST(NcclApiTest, AMissingOrOldLibraryIsRefusedInOneLine) {
  const absl::Status missing = OpenNccl("libnccl.so.0").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()),
              HasSubstr("NCCL cannot be opened: libnccl.so.0: cannot open shared object file"));
  const absl::Status other = OpenNccl("libc.so.6").status();
  EXPECT_EQ(other.message(), "NCCL in libc.so.6 has no function ncclGetVersion");
  EXPECT_EQ(
      FakeNccl({.version = 21705}).Open().status(),
      absl::FailedPreconditionError("NCCL 2.17.5 is too old; flotilla needs 2.18.0 or later"));
  EXPECT_EQ(
      FakeNccl({.version = 2708}).Open().status(),
      absl::FailedPreconditionError("NCCL before 2.9 is too old; flotilla needs 2.18.0 or later"));
  EXPECT_EQ((*FakeNccl({.version = 22809}).Open())->version, "2.28.9");
}

TEST(NcclApiTest, TheRealLibraryHasEveryFunction) {
  std::string path = "libnccl.so.2";
  for (const char* const place :
       {"/usr/local/cuda/lib/libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"}) {
    if (std::filesystem::exists(place)) path = place;
  }
  const auto api = OpenNccl(path);
  if (absl::IsNotFound(api.status()) && path == "libnccl.so.2") {
    GTEST_SKIP() << "libnccl.so.2 is not on this machine";
  }
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_THAT((*api)->version, ::testing::StartsWith("2."));
  NcclApi::UniqueId id;
  EXPECT_EQ((*api)->get_unique_id(&id), NcclApi::kSuccess);
  EXPECT_EQ(std::string((*api)->get_error_string(NcclApi::kSuccess)), "no error");
}

}  // namespace
}  // namespace flotilla::worker
