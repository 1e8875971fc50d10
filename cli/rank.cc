#include "cli/rank.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/role_options.h"
#include "common/rt/clock.h"
#include "model/gguf.h"
#include "worker/cpu_quota.h"
#include "worker/group/rank_process.h"
#include "worker/group/share_region.h"
#include "worker/rank_runner.h"
#include "worker/shared_memory_communicator.h"

namespace flotilla {
namespace {

// A rank of several: its part of the model, and what joins it to the others. Lives as
// long as the process.
absl::StatusOr<Communicator*> JoinRanks(const GgufFile& file, const RankOptions& options,
                                        int rank) {
  absl::StatusOr<GroupLayout> layout = PlanGroup(file, options);
  if (!layout.ok()) return layout.status();
  auto region = ShareRegion(SharedMemoryCommunicator::RegionBytes(layout->shape, layout->limits));
  if (!region.ok()) return region.status();
  const bool spin =
      static_cast<int>(layout->shape.ranks()) * std::max(1, options.threads) <= AvailableCpus();
  static std::unique_ptr<Communicator> communicator;
  communicator = std::make_unique<SharedMemoryCommunicator>(
      std::make_shared<const SharedRegion>(*std::move(region)), layout->shape,
      static_cast<std::uint32_t>(rank), layout->limits, spin);
  return communicator.get();
}

absl::StatusOr<std::unique_ptr<StepRunner>> LoadRank(const RoleFlags& flags, int rank, int size,
                                                     const Clock* clock) {
  absl::StatusOr<RankOptions> options = MakeRankOptions(flags, ModelId(flags));
  if (!options.ok()) return options.status();
  if (options->shape.ranks() != static_cast<std::uint32_t>(size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tp x --pp is ", options->shape.ranks(), "; the job has ", size, " ranks"));
  }
  absl::StatusOr<GgufFile> opened = GgufFile::Open(flags.model);
  if (!opened.ok()) return opened.status();
  auto file = std::make_shared<const GgufFile>(*std::move(opened));
  Communicator* communicator = nullptr;
  if (size > 1) {
    absl::StatusOr<Communicator*> joined = JoinRanks(*file, *options, rank);
    if (!joined.ok()) return joined.status();
    communicator = *joined;
  }
  auto runner = RankRunner::Create(std::move(file), *options, clock, communicator);
  if (!runner.ok()) return runner.status();
  return *std::move(runner);
}

}  // namespace

void RunRank(const RoleFlags& flags) {
  const SteadyClock clock;
  RunRankProcess({.group_directory = flags.group_directory, .heartbeats = flags.heartbeats},
                 [&](int rank, int size) { return LoadRank(flags, rank, size, &clock); });
}

}  // namespace flotilla
