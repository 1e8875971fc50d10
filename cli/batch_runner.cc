#include "cli/batch_runner.h"

#include <utility>

#include "absl/time/time.h"
#include "router/http/api_handler.h"

namespace flotilla::cli {

BatchRunner::BatchRunner(Parts parts)
    : parts_(std::move(parts)),
      io_loop_(parts_.service->OpenIoLoop(this)),
      handler_(router::MakeApiHandler({}, parts_.service, io_loop_.get())),
      lines_({.handler = handler_.get(),
              .clock = parts_.clock,
              .core = parts_.core,
              .input = parts_.input,
              .output = parts_.output,
              .errors = parts_.output}) {}

BatchRunner::~BatchRunner() = default;

void BatchRunner::Post(std::function<void()> work) {
  {
    absl::MutexLock lock(&mu_);
    posted_.push_back(std::move(work));
    if (posted_.size() > 1) return;  // the runner was woken for the first
  }
  parts_.signals->Wake();
}

void BatchRunner::RunPosted() {
  std::deque<std::function<void()>> work;
  {
    absl::MutexLock lock(&mu_);
    work.swap(posted_);
  }
  for (const std::function<void()>& one : work) one();
}

absl::Status BatchRunner::Run() {
  const router::BatchCore& core = *parts_.core;
  bool goes_on = true;
  OnEvent(parts_.signals->Wait(absl::ZeroDuration()));  // before any line starts
  while (goes_on) {
    RunPosted();
    if (absl::Status s = lines_.Step(); !s.ok()) return s;
    parts_.on_progress();
    goes_on = !core.over() && Wait();
  }
  return lines_.Sync();
}

bool BatchRunner::Wait() {
  const std::int64_t now_ns = parts_.clock->NowNs();
  const std::int64_t due_ns = lines_.due_ns(now_ns, parts_.progress_ns);
  return OnEvent(parts_.signals->Wait(absl::Nanoseconds(due_ns - now_ns)));
}

bool BatchRunner::OnEvent(Signals::Event event) {
  if (event != Signals::Event::kStop) return true;
  if (std::exchange(stopping_, true)) return false;
  parts_.core->Stop();
  parts_.on_stopping();
  return true;
}

}  // namespace flotilla::cli
