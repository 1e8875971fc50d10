#include "worker/constraint/compile_process.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rt/clock.h"
#include "common/rt/frames.h"
#include "worker/group/spawn.h"

namespace flotilla::worker {

CompileProcess::CompileProcess(std::string program, CompileSetup setup)
    : program_(std::move(program)),
      setup_(std::move(setup)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

CompileProcess::~CompileProcess() { End(); }

void CompileProcess::Stop() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof one);
}

absl::StatusOr<std::string> CompileProcess::Compile(const Constraint& constraint,
                                                    absl::Duration patience) {
  const std::int64_t deadline_ns = SteadyClock().NowNs() + absl::ToInt64Nanoseconds(patience);
  if (pid_ != 0 && IsBroken()) End();
  if (pid_ == 0) {
    if (absl::Status status = Start(deadline_ns); !status.ok()) {
      End();
      return status;
    }
  }
  absl::StatusOr<std::string> message = std::string();
  if (absl::Status sent = Write(EncodeConstraint(constraint), deadline_ns); sent.ok()) {
    message = Read(deadline_ns);
  } else {
    message = sent;
  }
  if (message.ok()) return DecodeCompiled(*message);
  const int ended = End();
  if (!absl::IsUnavailable(message.status())) return message.status();
  if (WIFSIGNALED(ended) && WTERMSIG(ended) == SIGPROF) {
    return absl::AbortedError(
        absl::StrCat("it takes more than ", setup_.limits.cpu_us / 1000, " ms to compile"));
  }
  return absl::AbortedError("it crashes the process that compiles it");
}

absl::Status CompileProcess::Start(std::int64_t deadline_ns) {
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
  return Read(deadline_ns).status();
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

absl::StatusOr<std::string> CompileProcess::Read(std::int64_t deadline_ns) {
  FrameReader reader;
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
