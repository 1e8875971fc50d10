#include "worker/constraint/compile_process.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rt/clock.h"
#include "worker/group/spawn.h"

namespace flotilla::worker {

CompileProcess::CompileProcess(std::string program, CompileSetup setup, CompilePriority priority)
    : program_(std::move(program)),
      setup_(std::move(setup)),
      priority_(priority),
      highest_(getpriority(PRIO_PROCESS, 0) + CompilePriority::kHighest),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      nice_(priority.nice) {}

CompileProcess::~CompileProcess() { End(); }

void CompileProcess::Stop() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof one);
}

absl::StatusOr<std::string> CompileProcess::Compile(const Constraint& constraint,
                                                    absl::Duration patience) {
  const std::int64_t now_ns = SteadyClock().NowNs();
  const std::int64_t deadline_ns = now_ns + absl::ToInt64Nanoseconds(patience);
  if (now_ns >= raised_until_ns_) nice_ = priority_.nice;
  if (pid_ != 0 && IsBroken()) End();
  absl::StatusOr<std::optional<std::string>> message = std::nullopt;
  while (message.ok() && !message->has_value()) {
    if (absl::Status status = Start(deadline_ns); !status.ok()) {
      End();
      return status;
    }
    message = Ask(constraint, deadline_ns);
    if (message.ok() && !message->has_value()) RaisePriority();
  }
  if (message.ok()) return DecodeCompiled(**message);
  const int ended = End();
  if (!absl::IsUnavailable(message.status())) return message.status();
  if (WIFSIGNALED(ended) && WTERMSIG(ended) == SIGPROF) {
    return absl::AbortedError(
        absl::StrCat("it takes more than ", setup_.limits.cpu_us / 1000, " ms to compile"));
  }
  return absl::AbortedError("it crashes the process that compiles it");
}

absl::Status CompileProcess::Start(std::int64_t deadline_ns) {
  if (pid_ == 0) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return absl::UnavailableError(absl::StrCat("no socket: ", std::strerror(errno)));
    }
    socket_ = UniqueFd(ends[0]);
    UniqueFd theirs(ends[1]);
    const absl::StatusOr<pid_t> pid = Spawn({.words = {program_, "compile-constraints"},
                                             .environment = OwnEnvironment(),
                                             .output = theirs.get(),
                                             .drops_errors = true});
    theirs.Reset();  // so that a read ends when the process does
    if (!pid.ok()) return absl::UnavailableError(pid.status().message());
    pid_ = *pid;
    if (absl::Status status = Write(EncodeSetup(setup_), deadline_ns); !status.ok()) return status;
    FrameReader reader;
    if (absl::Status status = Read(reader, deadline_ns).status(); !status.ok()) return status;
  }
  // Only now, since a busy machine would make the start take seconds. A process that runs is never
  // given a higher priority, for which it would need a privilege.
  const auto id = static_cast<id_t>(pid_);
  if (nice_ > getpriority(PRIO_PROCESS, id)) setpriority(PRIO_PROCESS, id, nice_);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> CompileProcess::Ask(const Constraint& constraint,
                                                               std::int64_t deadline_ns) {
  const std::int64_t turn_ns = absl::ToInt64Nanoseconds(priority_.starving);
  if (absl::Status sent = Write(EncodeConstraint(constraint), deadline_ns); !sent.ok()) return sent;
  FrameReader reader;
  while (true) {
    const std::optional<std::int64_t> cpu_ns = CpuNs();
    const std::int64_t end_ns = SteadyClock().NowNs() + turn_ns;
    const bool may_rise = nice_ > highest_ && end_ns < deadline_ns;
    absl::StatusOr<std::string> message = Read(reader, may_rise ? end_ns : deadline_ns);
    if (message.ok()) return std::make_optional(*std::move(message));
    if (!absl::IsDeadlineExceeded(message.status()) || !may_rise) return message.status();
    const std::optional<std::int64_t> now_cpu_ns = CpuNs();
    if (cpu_ns && now_cpu_ns && *now_cpu_ns - *cpu_ns < turn_ns / 200) return std::nullopt;
  }
}

void CompileProcess::RaisePriority() {
  // A process may not raise its own, so another one begins with that of the worker.
  End();
  nice_ = highest_ + (nice_ - highest_) / 2;
  raised_until_ns_ = SteadyClock().NowNs() + absl::ToInt64Nanoseconds(priority_.raised);
}

std::optional<std::int64_t> CompileProcess::CpuNs() const {
  clockid_t clock;
  timespec used;
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &used) != 0) {
    return std::nullopt;
  }
  return used.tv_sec * 1'000'000'000 + used.tv_nsec;
}

absl::Status CompileProcess::Await(short events, std::int64_t deadline_ns) {
  while (true) {
    pollfd watched[] = {{.fd = socket_.get(), .events = events},
                        {.fd = stop_.get(), .events = POLLIN}};
    const std::int64_t left_ms = (deadline_ns - SteadyClock().NowNs()) / 1'000'000 + 1;
    const int ready =
        poll(watched, 2, static_cast<int>(std::clamp<std::int64_t>(left_ms, 0, 1 << 30)));
    if (ready < 0 && errno != EINTR) return absl::UnavailableError(std::strerror(errno));
    if (ready == 0) return absl::DeadlineExceededError("it was not compiled in time");
    if (ready > 0 && watched[1].revents != 0) return absl::CancelledError("the worker stops");
    if (ready > 0 && watched[0].revents != 0) return absl::OkStatus();
  }
}

absl::Status CompileProcess::Write(absl::string_view message, std::int64_t deadline_ns) {
  const std::string frame = Frame(message);
  absl::string_view left = frame;
  while (!left.empty()) {
    if (absl::Status status = Await(POLLOUT, deadline_ns); !status.ok()) return status;
    const ssize_t put = send(socket_.get(), left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (put >= 0) {
      left.remove_prefix(static_cast<std::size_t>(put));
    } else if (errno != EINTR && errno != EAGAIN) {
      return absl::UnavailableError(absl::StrCat("the socket: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CompileProcess::Read(FrameReader& reader, std::int64_t deadline_ns) {
  while (true) {
    if (absl::Status status = Await(POLLIN, deadline_ns); !status.ok()) return status;
    if (const absl::StatusOr<bool> read = reader.ReadFrom(socket_.get()); !read.ok()) {
      return absl::UnavailableError(read.status().message());
    }
    if (std::optional<std::string> message = reader.Next()) return *std::move(message);
  }
}

bool CompileProcess::IsBroken() const {
  pollfd watched{.fd = socket_.get(), .events = POLLIN};
  return poll(&watched, 1, 0) != 0;
}

int CompileProcess::End() {
  socket_.Reset();
  if (pid_ == 0) return 0;
  // A process that has ended by itself keeps its own status.
  kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return status;
}

}  // namespace flotilla::worker
