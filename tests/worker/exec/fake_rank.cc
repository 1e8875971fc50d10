// A rank of a worker group without a model. It is the real main program of a rank, with
// FakeExecutor's arithmetic. Rank 0 gives the results.
//
// Faults are files in the directory that --faults names, each for one strike:
//   rank-R-step-S   what rank R does in step S, before its result
//   rank-R-load     what it does instead of loading
// The content is one of the words of Strike.
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/rt/load_progress.h"
#include "tests/support/fake_executor.h"
#include "worker/core/group_state.h"
#include "worker/exec/rank_process.h"

namespace flotilla::worker {
namespace {

// The socket to the agent: the only connected Unix socket that leads to a path.
int AgentSocket() {
  for (int fd = 3; fd < 256; ++fd) {
    sockaddr_un peer{};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
        peer.sun_family == AF_UNIX && std::strstr(peer.sun_path, "agent.sock") != nullptr) {
      return fd;
    }
  }
  std::abort();
}

void SleepForever() {
  while (true) pause();
}

// Stops only the heartbeat of this process.
void StopTheHeart() {
  static std::atomic<bool> stopped{false};
  std::signal(SIGUSR2, [](int) {
    stopped = true;
    SleepForever();
  });
  // A list of threads may miss one while another begins or ends, so this is repeated.
  while (!stopped) {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::getline(std::ifstream(task.path() / "comm") >> std::ws, name);
      if (name != "heartbeat") continue;
      syscall(SYS_tgkill, getpid(), std::stoi(task.path().filename()), SIGUSR2);
    }
    usleep(1000);
  }
}

// Calls itself until the stack is used up.
[[gnu::noinline]] void OverflowTheStack(const volatile char* caller) {
  volatile char frame[4096];
  frame[0] = *caller;
  if (frame[0] != 0) OverflowTheStack(frame);  // as it always is
  frame[1] = frame[0];
}

// Ends as a process does that the kernel kills because its cgroup has no memory left.
void DieForMemory(const std::string& faults) {
  std::ofstream(faults + "/cgroup/memory.events") << "low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\n"
                                                  << std::flush;
  raise(SIGKILL);
}

void Strike(const std::string& fault, const std::string& faults) {
  if (fault == "exit") std::exit(3);
  if (fault == "abort") std::abort();
  if (fault == "kill") raise(SIGKILL);
  if (fault == "oom") DieForMemory(faults);
  if (fault == "stop") raise(SIGSTOP);
  if (fault == "term") raise(SIGTERM);
  if (fault == "segv") raise(SIGSEGV);
  if (fault == "bus") raise(SIGBUS);
  if (fault == "fpe") raise(SIGFPE);
  if (fault == "ill") raise(SIGILL);
  if (fault == "overflow") OverflowTheStack(fault.data());
  if (fault == "stuck") SleepForever();
  if (fault == "silent") StopTheHeart();
  if (fault == "close") shutdown(AgentSocket(), SHUT_RDWR);
  if (fault == "garbage") {
    constexpr char kGarbage[] = "\x05\x00\x00\x00\xff\xff\xff\xff\xff";
    (void)!send(AgentSocket(), kGarbage, 9, MSG_NOSIGNAL);
  }
  if (fault == "oversize") {
    (void)!send(AgentSocket(), "\xff\xff\xff\xff", 4, MSG_NOSIGNAL);
  }
  if (fault == "chatter") {
    for (int i = 0; i < 2000; ++i) std::fprintf(stderr, "line %d of many\n", i);
    return;
  }
  SleepForever();
}

// Loads for two seconds, a byte every 20 ms.
void LoadSlowly(LoadProgress* progress) {
  for (int i = 0; i < 100; ++i) {
    usleep(20'000);
    progress->Move(1);
  }
}

// Returns the fault with this name, and removes it.
std::optional<std::string> Take(const std::string& path) {
  std::ifstream file(path);
  std::string fault;
  if (!std::getline(file, fault)) return std::nullopt;
  std::filesystem::remove(path);
  return fault;
}

class FakeRunner final : public StepRunner {
 public:
  FakeRunner(int rank, std::string faults) : rank_(rank), faults_(std::move(faults)) {
    // Ranks describe themselves differently. The group must take the least or the most of each
    // value.
    description_.block_count -= static_cast<std::uint32_t>(rank);
    description_.decode_ns_per_step += rank;
  }

  void BeginEpoch(Epoch epoch) override { state_.emplace(epoch, description_); }

  absl::StatusOr<std::optional<StepResult>> Run(const StepPlan& plan) override {
    if (const auto fault =
            Take(absl::StrCat(faults_, "/rank-", rank_, "-step-", plan.step.value()))) {
      Strike(*fault, faults_);
    }
    auto batch = state_->Apply(plan);
    if (!batch.ok()) return batch.status();
    auto result =
        state_->Complete(plan.step, testing::FakeOutputs(*batch, description_.vocab_size));
    if (!result.ok()) return result.status();
    result->timings = {.compute_ns = 1000,
                       .rows = static_cast<std::uint32_t>(batch->tokens.size()),
                       .decode_rows = batch->decode_rows};
    if (rank_ != 0) return std::nullopt;
    return *std::move(result);
  }

  const ExecutorDescription& description() const override { return description_; }
  RankDevice device() const override { return {.name = absl::StrCat("device ", rank_)}; }
  std::int64_t weight_bytes() const override { return 1000; }
  std::int64_t buffer_bytes() const override { return 10; }

 private:
  const int rank_;
  const std::string faults_;
  ExecutorDescription description_ = testing::FakeExecutorOptions::DefaultDescription();
  std::optional<GroupState> state_;
};

}  // namespace
}  // namespace flotilla::worker

// This process is often killed. LeakSanitizer's helper process would be killed with it, and would
// become a child that the agent does not know.
extern "C" int __lsan_is_turned_off() { return 1; }

int main(int argc, char** argv) {
  std::string faults;
  flotilla::worker::RankProcessOptions options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--faults") faults = argv[i + 1];
    if (name == "--group-dir") options.group_directory = argv[i + 1];
    if (name == "--heartbeats") options.heartbeats = argv[i + 1];
    if (name == "--agent") options.agent = argv[i + 1];
  }
  flotilla::worker::RunRankProcess(
      options,
      [&](int rank, int, flotilla::LoadProgress* progress)
          -> absl::StatusOr<std::unique_ptr<flotilla::worker::StepRunner>> {
        progress->Begin(flotilla::LoadPhase::kWeights, 100);
        const auto fault = flotilla::worker::Take(absl::StrCat(faults, "/rank-", rank, "-load"));
        if (fault == "refuse") return absl::InvalidArgumentError("no such model");
        if (fault == "slow") {
          flotilla::worker::LoadSlowly(progress);
        } else if (fault == "join") {
          progress->Begin(flotilla::LoadPhase::kJoin, 0);
          usleep(2'000'000);  // as long as the others are slow
        } else if (fault.has_value())
          flotilla::worker::Strike(*fault, faults);
        return std::make_unique<flotilla::worker::FakeRunner>(rank, faults);
      });
}
