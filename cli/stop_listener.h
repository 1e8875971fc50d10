// StopListener: waits for a request to stop while the role does something that may never
// end, such as starting processes.
#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "cli/signals.h"

namespace flotilla::cli {

class StopListener {
 public:
  // Calls `on_stop`, on a thread of its own, at the first request to stop.
  StopListener(Signals* signals, std::function<void()> on_stop)
      : signals_(signals), thread_([this, on_stop = std::move(on_stop)] {
          Signals::Event event;
          do {
            event = signals_->Wait(absl::Hours(1));
          } while (event == Signals::Event::kTimeout);
          if (event != Signals::Event::kStop) return;
          on_stop();
          stopped_.Notify();
        }) {}
  ~StopListener() { End(); }

  // Waits until `on_stop` has returned.
  void WaitForStop() { stopped_.WaitForNotification(); }

  // Stops listening. True: there was a request to stop, and `on_stop` has returned.
  bool End() {
    if (thread_.joinable()) {
      signals_->Wake();
      thread_.join();
    }
    return stopped_.HasBeenNotified();
  }

 private:
  Signals* const signals_;
  absl::Notification stopped_;
  std::thread thread_;  // last, because it uses the others
};

}  // namespace flotilla::cli
