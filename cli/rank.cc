#include "cli/rank.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/role_options.h"
#include "common/rt/clock.h"
#include "model/gguf.h"
#include "worker/group/rank_process.h"
#include "worker/rank_runner.h"

namespace flotilla {
namespace {

absl::StatusOr<std::unique_ptr<StepRunner>> LoadRank(const RoleFlags& flags, int size,
                                                     const Clock* clock) {
  if (size > 1) {
    return absl::UnimplementedError(
        absl::StrCat("--tp and --pp: a model cannot be cut into ", size, " ranks yet"));
  }
  absl::StatusOr<RankOptions> options = MakeRankOptions(flags, ModelId(flags));
  if (!options.ok()) return options.status();
  absl::StatusOr<GgufFile> file = GgufFile::Open(flags.model);
  if (!file.ok()) return file.status();
  auto runner = RankRunner::Create(*file, *options, clock);
  if (!runner.ok()) return runner.status();
  return *std::move(runner);
}

}  // namespace

void RunRank(const RoleFlags& flags) {
  const SteadyClock clock;
  RunRankProcess({.group_directory = flags.group_directory, .heartbeats = flags.heartbeats},
                 [&](int /*rank*/, int size) { return LoadRank(flags, size, &clock); });
}

}  // namespace flotilla
