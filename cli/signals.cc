#include "cli/signals.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/time/clock.h"

namespace flotilla::cli {
namespace {
constexpr int kWakeSignal = SIGUSR1;
}  // namespace

Signals::Signals() {
  sigemptyset(&stop_);
  sigaddset(&stop_, SIGINT);
  sigaddset(&stop_, SIGTERM);
  all_ = stop_;
  sigaddset(&all_, kWakeSignal);
  pthread_sigmask(SIG_BLOCK, &all_, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

int Signals::WaitForStop() {
  int number = 0;
  while (sigwait(&stop_, &number) != 0) {
  }
  return number;
}

Signals::Event Signals::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const timespec left = absl::ToTimespec(std::max(deadline - absl::Now(), absl::ZeroDuration()));
    const int number = sigtimedwait(&all_, nullptr, &left);
    if (number == kWakeSignal) return Event::kWoken;
    if (number > 0) return Event::kStop;
    if (errno == EAGAIN) return Event::kTimeout;
  }
}

void Signals::Stop() { kill(getpid(), SIGTERM); }

void Signals::Wake() { kill(getpid(), kWakeSignal); }

}  // namespace flotilla::cli
