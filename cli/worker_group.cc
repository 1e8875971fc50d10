#include "cli/worker_group.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "cli/exec.h"
#include "cli/model_flags.h"
#include "cli/open_model.h"
#include "cli/role_options.h"
#include "cli/skipped_tensors.h"
#include "common/rt/cpu_quota.h"
#include "model/checkpoint.h"

namespace flotilla::cli {
namespace {

absl::StatusOr<worker::HostOptions> MakeHostOptions(const RoleFlags& flags) {
  worker::HostOptions options{.network = flags.group_network,
                              .hostfile = flags.hostfile,
                              .hosts = flags.hosts,
                              .remote_shell = flags.remote_shell};
  if (flags.hosts_port != 0) {
    absl::StatusOr<std::string> command = ExecCommand();
    if (!command.ok()) return command.status();
    options.remote_shell = *std::move(command);
    options.remote_shell_environment = ExecEnvironment(flags);
  }
  return options;
}

absl::StatusOr<worker::ProcessExecutorOptions> ProcessOptions(const RoleFlags& flags) {
  RoleFlags rank = flags;
  const std::int64_t ranks = flags.tensor_parallel * flags.pipeline_parallel;
  const bool hosts = !flags.group_network.empty();
  // With several hosts each rank chooses its own number of threads.
  if (rank.threads == 0 && !hosts) {
    rank.threads = std::max<std::int64_t>(1, AvailableCpus() / ranks);
  }
  std::error_code unknown;
  worker::ProcessExecutorOptions options;
  options.group.command = {std::filesystem::read_symlink("/proc/self/exe", unknown), "rank"};
  for (std::string& word : RankArguments(rank)) options.group.command.push_back(std::move(word));
  options.group.ranks = static_cast<int>(ranks);
  options.watch.load_stall_ns = flags.load_stall_ms * 1'000'000;
  if (hosts) {
    absl::StatusOr<worker::HostOptions> host_options = MakeHostOptions(flags);
    if (!host_options.ok()) return host_options.status();
    options.group.hosts = *std::move(host_options);
  }
  const char* temporary = std::getenv("TMPDIR");
  options.group.temporary = temporary == nullptr || *temporary == '\0' ? "/tmp" : temporary;
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerGroup>> WorkerGroup::Create(const RoleFlags& flags,
                                                                 const Clock* clock, Logger* log) {
  if (flags.launcher == "none" && !flags.group_network.empty()) {
    return absl::InvalidArgumentError(
        "--group-network cannot be used with --launcher none, which runs all ranks in this "
        "process");
  }
  const std::string model_id = ModelId(flags);
  const auto file = OpenModel(flags);
  if (!file.ok()) return file.status();
  const absl::StatusOr<TokenizerBundle> tokenizer = ReadTokenizer(flags, **file);
  if (!tokenizer.ok()) return tokenizer.status();
  absl::StatusOr<worker::RankOptions> options = MakeRankOptions(flags, model_id);
  if (!options.ok()) return options.status();
  LogTensors(**file, options->kv_format, *log);
  if (auto wrong = CheckModelFlags(flags, *options, **file); !wrong.ok()) return wrong;
  std::unique_ptr<WorkerGroup> group(
      new WorkerGroup(flags, TokenizerContentOf(*tokenizer, model_id), clock));
  if (flags.launcher == "none") {
    group->in_process_.emplace(*file, *std::move(options), clock, log);
  } else {
    auto processes = ProcessOptions(flags);
    if (!processes.ok()) return processes.status();
    group->processes_.emplace(*std::move(processes), clock, log);
  }
  return group;
}

StepExecutor* WorkerGroup::executor() {
  if (in_process_.has_value()) return &*in_process_;
  return &*processes_;
}

void WorkerGroup::AddMetrics(Metrics& metrics) const {
  const worker::KvFormats kv = *KvFormatsOf(flags_);
  const worker::WorkerProbe* const probe =
      in_process_.has_value() ? &in_process_->probe() : &processes_->probe();
  worker::WatchKvConfig(metrics, kv.Name(), static_cast<std::uint32_t>(kv.block_tokens()), probe);
  worker::WatchWorker(metrics, probe);
  if (processes_.has_value()) worker::WatchGroup(metrics, &processes_->group_probe(), clock_);
}

void WorkerGroup::StopProcesses() {
  if (processes_.has_value()) processes_->Stop();
}

}  // namespace flotilla::cli
