#include "cli/terminal.h"

#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"

namespace flotilla::cli {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH};
constexpr int kMaxColumns = 10'000;

sigset_t SetOf(int number) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, number);
  return set;
}

}  // namespace

Terminal::Terminal() : shows_(isatty(STDOUT_FILENO) == 1) {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int number : kSignals) sigaddset(&taken, number);
  pthread_sigmask(SIG_BLOCK, &taken, &blocked_before_);
  std::signal(SIGPIPE, SIG_IGN);
  signals_.Reset(signalfd(-1, &taken, SFD_NONBLOCK | SFD_CLOEXEC));
  ReadKeys();
}

Terminal::~Terminal() {
  Restore();
  pthread_sigmask(SIG_SETMASK, &blocked_before_, nullptr);
}

void Terminal::ReadKeys() {
  // In the background, a change of the terminal's settings would stop the process.
  if (isatty(STDIN_FILENO) == 0 || tcgetpgrp(STDIN_FILENO) != getpgrp() ||
      tcgetattr(STDIN_FILENO, &before_) != 0) {
    return;
  }
  termios each_key = before_;  // ^C and ^Z still send signals
  each_key.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  each_key.c_cc[VMIN] = 1;
  each_key.c_cc[VTIME] = 0;
  keys_ = tcsetattr(STDIN_FILENO, TCSANOW, &each_key) == 0;
}

void Terminal::Restore() {
  if (!keys_) return;
  keys_ = false;
  // If the process is in the background by now, SIGTTOU would stop it.
  const sigset_t background = SetOf(SIGTTOU);
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &background, &before);
  tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Terminal::Suspend() {
  Restore();
  raise(SIGSTOP);
  ReadKeys();
}

Terminal::Event Terminal::Wait(absl::Time deadline) {
  while (true) {
    // The user may type ^Z, then bg, then fg. Suspend then returns in the background, and no event
    // reports the fg. So this is tried again until the terminal may be read.
    if (!keys_) ReadKeys();
    std::array<pollfd, 2> polled = {
        pollfd{.fd = signals_.get(), .events = POLLIN, .revents = 0},
        pollfd{.fd = keys_ ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0}};
    // The time is rounded up, because a poll that ends early would only be repeated.
    const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    const auto ms = static_cast<int>(absl::ToInt64Milliseconds(
        std::min(absl::Ceil(left, absl::Milliseconds(1)), absl::Hours(1))));
    const int ready = poll(polled.data(), polled.size(), ms);
    if (ready < 0 && errno != EINTR) return Event::kQuit;
    if (polled[0].revents != 0) {
      if (const std::optional<Event> event = TakeSignal()) return *event;
    }
    if (ready > 0 && polled[1].revents != 0 && TakeKeys()) return Event::kQuit;
    if (absl::Now() >= deadline) return Event::kTimeout;
  }
}

std::optional<Terminal::Event> Terminal::TakeSignal() {
  signalfd_siginfo info;
  if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return std::nullopt;
  if (info.ssi_signo == SIGWINCH) return Event::kResized;
  if (info.ssi_signo != SIGTSTP) return Event::kQuit;
  Suspend();
  return Event::kResized;
}

// Whether the program should end: the user typed q, or standard input has ended.
bool Terminal::TakeKeys() {
  std::array<char, 64> typed;
  const ssize_t got = read(STDIN_FILENO, typed.data(), typed.size());
  if (got < 0) return errno != EAGAIN && errno != EINTR;
  const auto end = typed.begin() + got;
  return got == 0 ||
         std::find_if(typed.begin(), end, [](char key) { return key == 'q' || key == 'Q'; }) != end;
}

std::optional<std::size_t> Terminal::columns() const {
  winsize size{};
  if (shows_ && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    return size.ws_col;
  }
  int columns = 0;
  const char* variable = std::getenv("COLUMNS");
  if (variable == nullptr || !absl::SimpleAtoi(variable, &columns) || columns <= 0) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(std::min(columns, kMaxColumns));
}

}  // namespace flotilla::cli
