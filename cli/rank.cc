#include "cli/rank.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/open_model.h"
#include "cli/role_options.h"
#include "common/rt/clock.h"
#include "common/rt/cpu_quota.h"
#include "common/rt/load_progress.h"
#include "model/checkpoint.h"
#include "model/load_spec.h"
#include "worker/comm/mpi_communicator.h"
#include "worker/comm/share_region.h"
#include "worker/comm/shared_memory_communicator.h"
#include "worker/exec/rank_process.h"
#include "worker/exec/rank_runner.h"

namespace flotilla::cli {
namespace {

// What mpirun says in a variable; `unknown` if it says nothing.
int NumberOf(const char* name, int unknown) {
  int number = 0;
  const char* variable = std::getenv(name);
  return variable != nullptr && absl::SimpleAtoi(variable, &number) ? number : unknown;
}

// The number of ranks of the job on this host.
int RanksHere() { return std::max(1, NumberOf("OMPI_COMM_WORLD_LOCAL_SIZE", 1)); }

// Joins this rank to the others of its group. The links live as long as the process.
absl::StatusOr<worker::RankLinks> JoinRanks(const model::Checkpoint& file,
                                            const model::ModelSpec& spec,
                                            const worker::RankOptions& options,
                                            const std::string& transport, int rank) {
  absl::StatusOr<worker::GroupLayout> layout = worker::PlanGroup(file, options);
  if (!layout.ok()) return layout.status();
  const worker::ParallelShape shape = layout->shape;
  const auto number = static_cast<std::uint32_t>(rank);
  const bool spin = RanksHere() * std::max(1, options.threads) <= AvailableCpus();
  const bool one_host = worker::OnOneHost();
  if (transport == "shared" && !one_host) {
    return absl::FailedPreconditionError("--transport shared: the ranks are on several hosts");
  }
  if (transport == "mpi" || !one_host) {
    std::vector<worker::IndexRange> columns;
    const std::uint32_t stage_begin = number - number % shape.tensor;
    for (std::uint32_t t = 0; t < shape.tensor; ++t) {
      columns.push_back(layout->shards[stage_begin + t].vocab);
    }
    static worker::MpiCommunicator ranks(shape, number, layout->limits, std::move(columns),
                                         spec.vocab, spin);
    return worker::RankLinks{&ranks, &ranks};
  }
  auto region =
      worker::ShareRegion(worker::SharedMemoryCommunicator::RegionBytes(shape, layout->limits));
  if (!region.ok()) return region.status();
  static worker::SharedMemoryCommunicator ranks(
      std::make_shared<const worker::SharedRegion>(*std::move(region)), shape, number,
      layout->limits, spin);
  return worker::RankLinks{&ranks, &ranks};
}

absl::StatusOr<std::unique_ptr<worker::StepRunner>> LoadRank(const RoleFlags& flags, int rank,
                                                             int size, LoadProgress* progress,
                                                             const Clock* clock) {
  absl::StatusOr<worker::RankOptions> options = MakeRankOptions(flags, ModelId(flags));
  if (!options.ok()) return options.status();
  options->progress = progress;
  options->local_rank = std::max(0, NumberOf("OMPI_COMM_WORLD_LOCAL_RANK", 0));
  if (options->shape.ranks() != static_cast<std::uint32_t>(size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tp x --pp is ", options->shape.ranks(), "; the job has ", size, " ranks"));
  }
  if (options->threads == 0) options->threads = std::max(1, AvailableCpus() / RanksHere());
  const auto file = OpenModel(flags);
  if (!file.ok()) return file.status();
  worker::RankLinks links;
  if (size > 1) {
    progress->Begin(LoadPhase::kJoin, 0);
    const absl::StatusOr<model::ModelSpec> spec = model::LoadSpec(**file);
    if (!spec.ok()) return spec.status();
    const auto joined = JoinRanks(**file, *spec, *options, flags.transport, rank);
    if (!joined.ok()) return joined.status();
    links = *joined;
  }
  auto runner = worker::RankRunner::Create(*file, *options, clock, links);
  if (!runner.ok()) return runner.status();
  return *std::move(runner);
}

}  // namespace

void RunRank(const RoleFlags& flags) {
  const SteadyClock clock;
  worker::RunRankProcess({.group_directory = flags.group_directory,
                          .heartbeats = flags.heartbeats,
                          .agent = flags.agent},
                         [&](int rank, int size, LoadProgress* progress) {
                           return LoadRank(flags, rank, size, progress, &clock);
                         });
}

}  // namespace flotilla::cli
