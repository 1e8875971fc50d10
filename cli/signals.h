// Signals: SIGINT and SIGTERM as values that main waits for.
//
// Construct it before any thread is started. It blocks the signals for this thread and for all
// threads that are started later, so that only this object takes them.
#pragma once

#include <csignal>
#include <optional>

#include "absl/time/time.h"

namespace flotilla::cli {

class Signals {
 public:
  // Also ignores SIGPIPE, so that a write to a peer that went away returns an error.
  Signals();

  // Waits for a request to stop and returns the signal's number.
  int WaitForStop();

  enum class Event { kStop, kWoken, kTimeout };
  // Waits for another request to stop, for Wake, or until `timeout` has passed.
  Event Wait(absl::Duration timeout);

  // Requests a stop, as SIGTERM does. Any thread.
  void Stop();

  // Ends the Wait that is under way, or else the next one. Any thread.
  void Wake();

 private:
  sigset_t stop_;  // SIGINT, SIGTERM
  sigset_t all_;   // these and the signal that Wake sends
};

}  // namespace flotilla::cli
