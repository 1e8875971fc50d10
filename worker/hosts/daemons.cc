#include "worker/hosts/daemons.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <numeric>
#include <utility>

extern "C" {  // glibc 2.36 does not say so itself
#include <sys/pidfd.h>
}

#include "absl/strings/str_cat.h"
#include "worker/group/proc.h"
#include "worker/group/spawn.h"

namespace flotilla::worker {
namespace {

constexpr int kGraceMs = 1000;
constexpr std::size_t kReadBytes = 64 << 10;

absl::Status Failed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

bool EndsWithin(int pidfd, int timeout_ms) {
  pollfd end{.fd = pidfd, .events = POLLIN, .revents = 0};
  return poll(&end, 1, timeout_ms) > 0;
}

}  // namespace

Daemon::Daemon(Daemons* owner, pid_t pid, UniqueFd pidfd, UniqueFd output)
    : owner_(owner), pid_(pid), pidfd_(std::move(pidfd)), output_(std::move(output)) {}

Daemon::~Daemon() {
  if (!HasEnded(pidfd_.get())) {
    kill(-pid_, SIGTERM);
    kill(-pid_, SIGCONT);  // a stopped process would not act on SIGTERM
    EndsWithin(pidfd_.get(), kGraceMs);
  }
  kill(-pid_, SIGKILL);  // the ranks of its process group, too
  EndsWithin(pidfd_.get(), kGraceMs);
  owner_->Reap(pid_);
}

std::string Daemon::ReadOutput() {
  std::string output(kReadBytes, '\0');
  const ssize_t got = read(output_.get(), output.data(), output.size());
  closed_ |= got == 0;
  output.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return output;
}

Daemon::Update Daemon::Wait(int timeout_ms) {
  std::array<pollfd, 2> polled = {
      {{.fd = pidfd_.get(), .events = POLLIN, .revents = 0},
       {.fd = closed_ ? -1 : output_.get(), .events = POLLIN, .revents = 0}}};
  poll(polled.data(), polled.size(), timeout_ms);
  Update update{.output = ReadOutput(), .exit_code = std::nullopt};
  if (polled[0].revents == 0 || !update.output.empty()) return update;
  siginfo_t info{};
  if (waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == pid_) {
    update.exit_code = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
  }
  return update;
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemons::Start(const std::vector<std::string>& arguments) {
  const std::size_t bytes = std::accumulate(
      arguments.begin(), arguments.end(), std::size_t{0},
      [](std::size_t sum, const std::string& argument) { return sum + argument.size(); });
  if (arguments.size() > kMaxArguments || bytes > kMaxArgumentBytes) {
    return absl::InvalidArgumentError(absl::StrCat("arguments: ", arguments.size(), " of ", bytes,
                                                   " bytes; ", kMaxArguments, " of ",
                                                   kMaxArgumentBytes, " are allowed"));
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return Failed("a pipe");
  UniqueFd from(ends[0]), to(ends[1]);
  fcntl(to.get(), F_SETFL, 0);  // blocking: a writer waits until its output is read
  SpawnOptions options{.words = {program_}, .environment = OwnEnvironment(), .output = to.get()};
  options.words.insert(options.words.end(), arguments.begin(), arguments.end());

  absl::MutexLock lock(&mu_);
  if (pids_.size() >= kMaxDaemons) {
    return absl::ResourceExhaustedError(
        absl::StrCat(pids_.size(), " daemons run on this host; ", kMaxDaemons, " are allowed"));
  }
  const absl::StatusOr<pid_t> pid = Spawn(std::move(options));
  if (!pid.ok()) return pid.status();
  UniqueFd pidfd(pidfd_open(*pid, 0));
  if (!pidfd.ok()) {
    const absl::Status failed = Failed("pidfd_open");
    kill(-*pid, SIGKILL);
    waitpid(*pid, nullptr, 0);
    return failed;
  }
  pids_.insert(*pid);
  return std::unique_ptr<Daemon>(new Daemon(this, *pid, std::move(pidfd), std::move(from)));
}

void Daemons::Reap(pid_t pid) {
  absl::MutexLock lock(&mu_);
  waitpid(pid, nullptr, WNOHANG);
  pids_.erase(pid);
  // If this process is the first of a container, ranks whose daemon has ended become its
  // children. They stay as zombies until this process waits for them.
  siginfo_t info{};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 &&
         pids_.count(info.si_pid) == 0) {
    waitpid(info.si_pid, nullptr, WNOHANG);
    info = {};
  }
}

}  // namespace flotilla::worker
