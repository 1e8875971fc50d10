// What ranks compute on: GPUs, which are simulated, or CPUs.
#include "worker/exec/rank_device.h"

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/kernels/cuda/host_ops.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/hf_folder.h"
#include "tests/support/quantised_folder.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_gguf.h"
#include "worker/comm/shared_memory_communicator.h"
#include "worker/compute/recipe.h"
#include "worker/core/merge_descriptions.h"
#include "worker/device/await_memory.h"
#include "worker/device/simulated_device.h"
#include "worker/exec/rank.h"

namespace flotilla::worker {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = DeviceChoice::Kind;
using Ranks = std::vector<absl::StatusOr<std::unique_ptr<Rank>>>;

constexpr std::int64_t kEnoughMemory = std::int64_t{1} << 30;

// So many GPUs, all with so much memory.
DeviceMaker Gpus(int count, std::int64_t memory_bytes = kEnoughMemory,
                 std::shared_ptr<std::atomic<std::int64_t>> used_bytes = nullptr,
                 int capability = 90) {
  return
      [=](const DeviceChoice& choice, int local_rank) -> absl::StatusOr<std::unique_ptr<Device>> {
        if (choice.first_gpu >= count) {
          return absl::UnavailableError("no GPU can be used: the driver is away");
        }
        SimulatedDeviceOptions options;
        options.seed = static_cast<std::uint64_t>(local_rank);
        options.ops = &kernels::cuda::HostOps();
        options.memory_bytes = memory_bytes;
        options.id = used_bytes != nullptr ? "one" : absl::StrCat(local_rank);
        options.used_bytes = used_bytes;
        options.capability = capability;
        return std::make_unique<SimulatedDevice>(options);
      };
}

// Only the first rank of a host has one.
DeviceMaker GpuOfTheFirst() {
  return [](const DeviceChoice& choice, int local_rank) {
    return Gpus(local_rank == 0 ? 1 : 0)(choice, local_rank);
  };
}

class RankDeviceTest : public ::testing::Test {
 protected:
  RankOptions Options(DeviceChoice device, DeviceMaker make) const {
    return {.model_id = "tiny",
            .device = device,
            .threads = 1,
            .kv_blocks = 8,
            .make_device = std::move(make)};
  }

  absl::StatusOr<std::unique_ptr<Rank>> Load(const RankOptions& options) const {
    return Rank::Create(*model::ParseCheckpoint(bytes_), options, clock_);
  }
  absl::StatusOr<std::unique_ptr<Rank>> Load(Kind kind, DeviceMaker make) const {
    return Load(Options({.kind = kind}, std::move(make)));
  }

  // Two ranks that share each layer.
  Ranks LoadTwo(Kind kind, const DeviceMaker& make, std::uint32_t kv_blocks = 8,
                const testing::FakeNccl* nccl = nullptr) {
    RankOptions options = Options({.kind = kind}, make);
    options.kv_blocks = kv_blocks;
    options.open_nccl = [nccl]() -> absl::StatusOr<std::shared_ptr<const NcclApi>> {
      if (nccl == nullptr) return absl::NotFoundError("there is no NCCL");
      return nccl->Open();
    };
    if (memory_.has_value()) options.available_memory = [memory = *memory_] { return memory; };
    options.shape = {.tensor = 2, .pipeline = 1};
    std::shared_ptr<const model::Checkpoint> file = *model::ParseCheckpoint(bytes_);
    const GroupLayout layout = *PlanGroup(*file, options);
    const auto region = std::make_shared<const SharedRegion>(
        *SharedRegion::Create(SharedMemoryCommunicator::RegionBytes(layout.shape, layout.limits)));
    std::vector<std::future<absl::StatusOr<std::unique_ptr<Rank>>>> loads;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      communicators_.push_back(std::make_unique<SharedMemoryCommunicator>(
          region, layout.shape, rank, layout.limits, /*spin=*/false));
      options.local_rank = static_cast<int>(rank);
      loads.push_back(std::async(std::launch::async, [=, this, own = communicators_.back().get()] {
        auto made = Rank::Create(file, options, clock_, {own, own});
        if (!made.ok()) own->Abort();
        return made;
      }));
    }
    Ranks ranks;
    for (auto& load : loads) ranks.push_back(load.get());
    return ranks;
  }

  std::vector<std::byte> bytes_ = testing::TinyGguf();
  const SteadyClock clock_;
  std::vector<std::unique_ptr<SharedMemoryCommunicator>> communicators_;  // outlive the ranks
  std::optional<AvailableMemory> memory_;  // of ranks on CPUs; none: that of the machine
};

TEST_F(RankDeviceTest, TheChoiceIsKeptWhereItCanBe) {
  const auto cpu = Load(Kind::kCpu, Gpus(1));
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_THAT((*cpu)->device().name, StartsWith("CPU ("));
  EXPECT_EQ((*cpu)->device().no_gpu, "");
  for (const Kind kind : {Kind::kCuda, Kind::kAuto}) {
    const auto gpu = Load(kind, Gpus(1));
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    EXPECT_EQ((*gpu)->device(), (RankDevice{.name = "simulated GPU"}));
    EXPECT_EQ((*gpu)->description().numerics_id == (*cpu)->description().numerics_id,
              CudaIsProven(90));
  }
}

// Kernels are compiled for each compute capability, and a report is about one.
TEST_F(RankDeviceTest, GpusThatNoReportIsAboutHaveANumericsIdOfTheirOwn) {
  const auto id_of = [](const auto& rank) { return (*rank)->description().numerics_id; };
  const std::uint64_t cpu = id_of(Load(Kind::kCpu, nullptr));
  const std::uint64_t unproven = id_of(Load(Kind::kCuda, Gpus(1, kEnoughMemory, nullptr, 80)));
  EXPECT_NE(unproven, cpu);
  // One such GPU makes a group unproven.
  const Ranks ranks = LoadTwo(Kind::kCuda, [](const DeviceChoice& choice, int local_rank) {
    return Gpus(2, kEnoughMemory, nullptr, local_rank == 0 ? 90 : 80)(choice, local_rank);
  });
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank.ok()) << rank.status();
    EXPECT_EQ(id_of(rank), unproven);
  }
}

TEST_F(RankDeviceTest, WithoutAGpuAutoMeansTheCpuAndCudaIsRefused) {
  const auto cpu = Load(Kind::kAuto, Gpus(0));
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_THAT((*cpu)->device().name, StartsWith("CPU ("));
  EXPECT_EQ((*cpu)->device().no_gpu, "no GPU can be used: the driver is away");
  EXPECT_EQ((*cpu)->description().numerics_id,
            (*Load(Kind::kCpu, nullptr))->description().numerics_id);

  const auto refused = Load(Options({.kind = Kind::kCuda, .first_gpu = 3}, Gpus(2))).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(),
            "--device cuda:3: no GPU can be used: the driver is away; --device cpu needs no GPU");
}

TEST_F(RankDeviceTest, WhatGpusDoNotComputeIsServedByCpusOrRefusedByName) {
  struct Case {
    std::string what;
    testing::TinyModelOptions model;
    kernels::KvFormat kv = kernels::KvFormat::kBf16;
  };
  const Case cases[] = {
      {.what = "int8", .model = {}, .kv = kernels::KvFormat::Both(kernels::KvType::kInt8)},
      {.what = "mixtures of experts", .model = {.experts = 4}},
      {.what = "GPUs do not multiply weights of this format",
       .model = {.matrix_type = model::GgmlType::kIQ4_NL}}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    bytes_ = testing::TinyGguf(one.model);
    RankOptions options = Options({.kind = Kind::kAuto}, Gpus(1));
    options.kv_format = one.kv;
    const auto cpu = Load(options);
    ASSERT_TRUE(cpu.ok()) << cpu.status();
    EXPECT_THAT((*cpu)->device().name, StartsWith("CPU ("));
    EXPECT_THAT((*cpu)->device().no_gpu, HasSubstr(one.what));
    options.device.kind = Kind::kCuda;
    const absl::Status refused = Load(options).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(refused.message()),
                AllOf(StartsWith("--device cuda: "), HasSubstr(one.what)));
  }
}

// W8A8 matrices under recipe fast, which is another recipe only for models that have some.
TEST_F(RankDeviceTest, W8A8IsServedByCpusUnderFast) {
  const testing::ScratchDirectory plain, folder;
  testing::WriteLlamaFolder(**model::ParseCheckpoint(bytes_), plain.path());
  testing::WriteQuantisedFolder(plain.path(), testing::W8A8Layers().front(), 1, folder.path());
  const auto load = [&](const std::string& path, Recipe recipe, Kind kind) {
    RankOptions options = Options({.kind = kind}, Gpus(1));
    options.recipe = recipe;
    return Rank::Create(*model::OpenCheckpoint(path), options, clock_);
  };
  const auto id = [&](const std::string& path, Recipe recipe) {
    const auto rank = load(path, recipe, Kind::kCpu);
    EXPECT_TRUE(rank.ok()) << rank.status();
    return (*rank)->description().numerics_id;
  };
  EXPECT_NE(id(folder.path(), Recipe::kFast), id(folder.path(), Recipe::kAccurate));
  EXPECT_EQ(id(plain.path(), Recipe::kFast), id(plain.path(), Recipe::kAccurate));
  const absl::Status refused = load(folder.path(), Recipe::kFast, Kind::kCuda).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(
      refused.message(),
      "--device cuda: GPUs do not compute W8A8 matrices with activations of 8 bits (--compute "
      "fast) yet; --device cpu does");
  const auto cpu = load(folder.path(), Recipe::kFast, Kind::kAuto);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_THAT((*cpu)->device().no_gpu, HasSubstr("--compute fast"));
  EXPECT_TRUE(load(plain.path(), Recipe::kFast, Kind::kCuda).ok());
}

TEST_F(RankDeviceTest, AGpuThatIsTooSmallIsNoCauseToBeSlow) {
  for (const Kind kind : {Kind::kAuto, Kind::kCuda}) {
    const absl::Status refused = Load(kind, Gpus(1, /*memory_bytes=*/1 << 16)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()), EndsWith("; --device cpu needs no GPU"));
  }
}

TEST_F(RankDeviceTest, AllRanksOfAGroupAreOnGpusOrNoneIs) {
  const Ranks gpus = LoadTwo(Kind::kAuto, Gpus(2));
  const Ranks cpus = LoadTwo(Kind::kAuto, GpuOfTheFirst());
  for (const Ranks* ranks : {&gpus, &cpus}) {
    std::vector<ExecutorDescription> descriptions;
    for (const auto& rank : *ranks) {
      ASSERT_TRUE(rank.ok()) << rank.status();
      descriptions.push_back((*rank)->description());
    }
    EXPECT_TRUE(MergeDescriptions(descriptions).ok()) << MergeDescriptions(descriptions).status();
  }
  for (const auto& rank : gpus) EXPECT_EQ((*rank)->device().name, "simulated GPU");
  for (const auto& rank : cpus) {
    EXPECT_THAT((*rank)->device().name, StartsWith("CPU ("));
    EXPECT_EQ((*rank)->device().no_gpu, "rank 1: no GPU can be used: the driver is away");
  }
  EXPECT_EQ((*cpus[0])->description().numerics_id,
            (*Load(Kind::kCpu, nullptr))->description().numerics_id);
}

TEST_F(RankDeviceTest, NobodyWaitsForARankThatIsRefused) {
  const Ranks ranks = LoadTwo(Kind::kAuto, [](const DeviceChoice& choice, int local_rank) {
    return Gpus(1, local_rank == 0 ? kEnoughMemory : 1 << 16)(choice, local_rank);
  });
  EXPECT_EQ(ranks[0].status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ranks[1].status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(RankDeviceTest, RanksWithGpusOfTheirOwnExchangeOverNcclAndOthersThroughTheHost) {
  const testing::FakeNccl nccl;
  const testing::FakeNccl old({.version = 21700});
  const auto one = std::make_shared<std::atomic<std::int64_t>>(0);
  const struct {
    DeviceMaker make;
    const testing::FakeNccl* nccl;
    std::string exchange, no_nccl;
  } cases[] = {{Gpus(2), &nccl, "nccl 2.28.9", ""},
               {Gpus(2), nullptr, "host", "rank 0: there is no NCCL"},
               {Gpus(2), &old, "host", "rank 0: NCCL 2.17"},
               {Gpus(1, kEnoughMemory, one), &nccl, "host", "ranks 0 and 1 share a GPU"}};
  std::vector<std::uint64_t> ids;
  for (const auto& item : cases) {
    const Ranks ranks = LoadTwo(Kind::kAuto, item.make, /*kv_blocks=*/8, item.nccl);
    for (const auto& rank : ranks) {
      ASSERT_TRUE(rank.ok()) << rank.status();
      EXPECT_EQ((*rank)->device().exchange, item.exchange);
      EXPECT_THAT((*rank)->device().no_nccl, HasSubstr(item.no_nccl));
    }
    ids.push_back((*ranks[0])->description().numerics_id);
    EXPECT_EQ((*ranks[1])->description().numerics_id, ids.back());
  }
  // No device has shown the bits of NCCL yet.
  EXPECT_EQ(ids[0] == ids[1], kNcclIsProven);
  EXPECT_EQ(ids[1], ids[2]);
  EXPECT_EQ(ids[1], ids[3]);
}

TEST_F(RankDeviceTest, AnNcclThatDoesNotWorkIsNotUsed) {
  testing::FakeNccl nccl;
  nccl.FailLater(0);
  nccl.FailLater(1);
  const Ranks ranks = LoadTwo(Kind::kAuto, Gpus(2), /*kv_blocks=*/8, &nccl);
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank.ok()) << rank.status();
    EXPECT_EQ((*rank)->device().exchange, "host");
    EXPECT_EQ((*rank)->device().no_nccl,
              "rank 0: NCCL failed in joining the ranks: remote process exited");
  }
}

TEST_F(RankDeviceTest, AGpuThatDoesNotWorkIsNoCauseToBeSlow) {
  for (const Kind kind : {Kind::kAuto, Kind::kCuda}) {
    const absl::Status failed =
        Load(kind, [](const DeviceChoice&, int) -> absl::StatusOr<std::unique_ptr<Device>> {
          return absl::InternalError("cudaSetDevice: an ECC error");
        }).status();
    EXPECT_EQ(failed, absl::InternalError("cudaSetDevice: an ECC error"));
  }
}

// The GPUs differ in their memory; the ranks take what the smaller one has room for.
TEST_F(RankDeviceTest, AllRanksComeToTheSameNumberOfBlocks) {
  const Ranks ranks = LoadTwo(
      Kind::kCuda,
      [](const DeviceChoice& choice, int local_rank) {
        return Gpus(2, local_rank == 0 ? kEnoughMemory : kEnoughMemory / 2)(choice, local_rank);
      },
      /*kv_blocks=*/0);
  for (const auto& rank : ranks) ASSERT_TRUE(rank.ok()) << rank.status();
  const ExecutorDescription &first = (*ranks[0])->description(), &last = (*ranks[1])->description();
  EXPECT_EQ(first.block_count, last.block_count);
  const auto bytes =
      static_cast<std::int64_t>(last.block_count * last.groups.front().bytes_per_block);
  EXPECT_LT(bytes, kEnoughMemory / 2);
  EXPECT_GT(bytes, kEnoughMemory / 2 - (std::int64_t{400} << 20));
}

TEST_F(RankDeviceTest, RanksThatShareAGpuDivideWhatIsFree) {
  const auto used = std::make_shared<std::atomic<std::int64_t>>(0);
  const Ranks ranks = LoadTwo(Kind::kCuda, Gpus(1, kEnoughMemory, used), /*kv_blocks=*/0);
  std::int64_t bytes = 0;
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank.ok()) << rank.status();
    const ExecutorDescription& own = (*rank)->description();
    EXPECT_EQ(own.block_count, (*ranks[0])->description().block_count);
    bytes += static_cast<std::int64_t>(own.block_count * own.groups.front().bytes_per_block);
  }
  EXPECT_LE(*used, kEnoughMemory);
  EXPECT_GT(bytes, kEnoughMemory - 2 * (std::int64_t{400} << 20));
}

// Ranks on CPUs of one host: each takes half of a half of what is available. The tiny model has 8
// KiB a block, and 4 KiB of it on each of two ranks.
TEST_F(RankDeviceTest, RanksOnCpusDivideWhatIsAvailable) {
  memory_ = AvailableMemory{.bytes = 1 << 20, .whose = "a test"};
  const Ranks ranks = LoadTwo(Kind::kCpu, Gpus(0), /*kv_blocks=*/0);
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank.ok()) << rank.status();
    EXPECT_EQ((*rank)->description().groups.front().bytes_per_block, 4096);
    EXPECT_EQ((*rank)->description().block_count, (1 << 20) / 2 / 2 / 4096);
    EXPECT_EQ((*rank)->device().kv_memory, "50 % of the 0.0 GiB that a test has available");
  }
}

TEST_F(RankDeviceTest, APoolHoldsNoMoreThanAllSequencesNeed) {
  RankOptions options = Options({.kind = Kind::kCpu}, Gpus(0));
  options.kv_blocks = 0;
  options.max_sequences = 3;
  options.available_memory = [] {
    return AvailableMemory{.bytes = std::int64_t{1} << 30, .whose = "a test"};
  };
  const auto rank = Load(options);
  ASSERT_TRUE(rank.ok()) << rank.status();
  const ExecutorDescription& description = (*rank)->description();
  EXPECT_EQ(description.block_count, 3 * description.max_context / 16 + 1);
  options.kv_share_percent = 1;
  options.available_memory = [] { return AvailableMemory{.bytes = 40 * 8192, .whose = "a test"}; };
  const auto small = Load(options);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ((*small)->description().block_count, 33);  // one sequence, of 512 tokens
}

// The process before this one has ended, but its memory comes free only after a while.
TEST_F(RankDeviceTest, AStartWaitsUntilADeadProcessHasGivenItsMemoryBack) {
  const auto used = std::make_shared<std::atomic<std::int64_t>>(kEnoughMemory - 4096);
  absl::Duration waited;
  RankOptions options = Options({.kind = Kind::kCuda}, Gpus(1, kEnoughMemory, used));
  options.sleep = [&](absl::Duration pause) {
    waited += pause;
    if (waited == absl::Seconds(1)) *used -= kEnoughMemory / 2;
    if (waited == absl::Seconds(2)) *used -= kEnoughMemory / 2 - 4096;
  };
  const auto rank = Load(options);
  ASSERT_TRUE(rank.ok()) << rank.status();
  EXPECT_EQ(waited, absl::Seconds(2));
}

TEST_F(RankDeviceTest, TheWaitForMemoryHasABound) {
  absl::Duration waited;
  // Somebody has it, and keeps it.
  const auto used = std::make_shared<std::atomic<std::int64_t>>(kEnoughMemory - 4096);
  RankOptions options = Options({.kind = Kind::kAuto}, Gpus(1, kEnoughMemory, used));
  options.sleep = [&](absl::Duration pause) { waited += pause; };
  const absl::Status full = Load(options).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("4096 bytes are free"));
  EXPECT_EQ(waited, kSettledMemoryWait);
  // There is no room for a process.
  waited = absl::ZeroDuration();
  options.make_device = [](const DeviceChoice&, int) -> absl::StatusOr<std::unique_ptr<Device>> {
    return absl::ResourceExhaustedError("GPU 0 has no room for another process");
  };
  EXPECT_EQ(Load(options).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(waited, kMostMemoryWait);
}

TEST(GroupDeviceTest, NamesEachDeviceOnce) {
  RankDevice all;
  all.Add({.name = "one", .no_gpu = ""});
  all.Add({.name = "one", .no_gpu = "why"});
  all.Add({.name = "two", .no_gpu = "because"});
  EXPECT_EQ(all, (RankDevice{.name = "one, two", .no_gpu = "why"}));
}

}  // namespace
}  // namespace flotilla::worker
