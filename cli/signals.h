// Signals: SIGINT and SIGTERM as values that main waits for.
//
// Construct it before any thread is started: it blocks the signals for this thread and all
// that are started later, so that they are only ever taken here.
#pragma once

#include <csignal>
#include <optional>

#include "absl/time/time.h"

namespace flotilla {

class Signals {
 public:
  // Also ignores SIGPIPE: a peer that went away is an error of its write.
  Signals();

  // Waits for a request to stop; the signal's number.
  int WaitForStop();

  enum class Event { kStop, kWoken, kTimeout };
  // Waits for another request to stop, for Wake, or until `timeout` has passed.
  Event Wait(absl::Duration timeout);

  // Ends a Wait, the one under way or the next. Any thread.
  void Wake();

 private:
  sigset_t stop_;  // SIGINT, SIGTERM
  sigset_t all_;   // and the one that Wake sends
};

}  // namespace flotilla
