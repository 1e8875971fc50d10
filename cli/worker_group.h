// WorkerGroup: the ranks of a model, which this process runs for its own scheduler or for
// a scheduler in another process.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "cli/flags.h"
#include "common/obs/log.h"
#include "common/obs/metrics.h"
#include "common/rt/clock.h"
#include "common/types/engine.h"
#include "common/types/executor.h"
#include "worker/exec/in_process_executor.h"
#include "worker/exec/process_executor.h"

namespace flotilla::cli {

class WorkerGroup {
 public:
  // Opens the model; the ranks start with the executor. `clock` and `log` outlive it.
  // INVALID_ARGUMENT and other errors name the flag, or what is wrong with the file.
  static absl::StatusOr<std::unique_ptr<WorkerGroup>> Create(const RoleFlags& flags,
                                                             const Clock* clock, Logger* log);

  const TokenizerContent& tokenizer() const { return tokenizer_; }
  // Runs ranks that are processes, or threads of this process (--launcher none).
  StepExecutor* executor();
  // Whether ranks are processes, so that the threads that deliver results compute nothing.
  bool has_own_processes() const { return processes_.has_value(); }
  // `metrics` must not be read after the group is gone.
  void AddMetrics(Metrics& metrics) const;
  // Stops ranks that are processes; also ends a start that would never end. Any thread.
  void StopProcesses();

 private:
  WorkerGroup(const RoleFlags& flags, TokenizerContent tokenizer, const Clock* clock)
      : flags_(flags), clock_(clock), tokenizer_(std::move(tokenizer)) {}

  const RoleFlags flags_;
  const Clock* const clock_;
  const TokenizerContent tokenizer_;
  std::optional<worker::InProcessExecutor> in_process_;  // either this or processes_ is set
  std::optional<worker::ProcessExecutor> processes_;
};

}  // namespace flotilla::cli
