// A ProcessExecutor with fake ranks (tests/worker/exec/fake_rank.cc). It has directories of
// its own, which must be empty at the end.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rt/clock.h"
#include "tests/support/log_lines.h"
#include "tests/support/scratch_directory.h"
#include "worker/exec/process_executor.h"

namespace flotilla::testing {

// Options for a group on several hosts. All of them are this host.
inline worker::HostOptions Loopback() {
  return {.network = "127.0.0.0/8", .hostfile = "", .remote_shell = "/bin/false"};
}

class FakeGroup {
 public:
  explicit FakeGroup(int ranks, std::optional<worker::HostOptions> hosts = std::nullopt,
                     worker::WatchOptions watch = {})
      : executor_(std::make_unique<worker::ProcessExecutor>(
            worker::ProcessExecutorOptions{
                .group = {.command = {FLOTILLA_FAKE_RANK, "--faults", faults_.path()},
                          .ranks = ranks,
                          .temporary = temporary_.path(),
                          .cgroups = faults_.path() + "/cgroup",
                          .hosts = std::move(hosts)},
                .watch = watch},
            &clock_, &lines.logger())) {
    std::filesystem::create_directory(faults_.path() + "/cgroup");
    std::ofstream(faults_.path() + "/cgroup/memory.events") << "oom 0\noom_kill 0\n";
  }
  // Stops the group and checks what is left.
  ~FakeGroup() {
    executor_->Stop();
    EXPECT_TRUE(std::filesystem::is_empty(temporary_.path())) << "files were left behind";
  }

  worker::ProcessExecutor& executor() { return *executor_; }
  void AddFault(const std::string& name, const std::string& fault) {
    const std::string path = absl::StrCat(faults_.path(), "/", name);
    std::ofstream(path + ".tmp") << fault << "\n";
    std::filesystem::rename(path + ".tmp", path);
  }

  // Waits until a rank has met the fault.
  void AwaitTaken(const std::string& name) const {
    const absl::Time limit = absl::Now() + absl::Minutes(1);
    while (std::filesystem::exists(absl::StrCat(faults_.path(), "/", name)) &&
           absl::Now() < limit) {
      std::this_thread::yield();
    }
  }

  const std::string& temporary() const { return temporary_.path(); }
  // The processes of the group that became ready last, as the log names them.
  pid_t RankPid(int rank) const { return Pids("ranks=").at(static_cast<std::size_t>(rank)); }
  pid_t LauncherPid() const { return Pids("mpirun=").at(0); }

  LogLines lines;

 private:
  std::vector<pid_t> Pids(const std::string& field) const {
    std::string line = lines.With("worker group ready").back();
    line.erase(0, line.find(field) + field.size());
    std::vector<pid_t> pids;
    for (const auto pid : absl::StrSplit(line.substr(0, line.find(' ')), ',')) {
      EXPECT_TRUE(absl::SimpleAtoi(pid, &pids.emplace_back()));
    }
    return pids;
  }

  ScratchDirectory temporary_, faults_;
  SteadyClock clock_;
  std::unique_ptr<worker::ProcessExecutor> executor_;
};

}  // namespace flotilla::testing
