// Terminal: the keyboard and the width of the terminal that `flotilla top` runs in, and the
// signals that it lives with. One thread.
#pragma once

#include <termios.h>

#include <cstddef>
#include <optional>

#include "absl/time/time.h"
#include "common/rt/unique_fd.h"

namespace flotilla {

class Terminal {
 public:
  // Blocks SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP and SIGWINCH, which become events, and
  // ignores SIGPIPE. Where standard input is a terminal that this process may read (it is not
  // in the background), keys are read one by one and not shown until the end.
  Terminal();
  // Puts everything back.
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // kQuit: q, a signal that asks to stop, or the terminal is gone.
  enum class Event { kTimeout, kQuit, kResized };
  // Waits for the next event, at most until `deadline`. A stop of the job (^Z) happens in
  // here, with the terminal as it was before; kResized when it goes on.
  Event Wait(absl::Time deadline);

  // Whether standard output is a terminal.
  bool shows() const { return shows_; }
  // The columns of standard output: the terminal's, or as $COLUMNS says; none: no bound.
  std::optional<std::size_t> columns() const;

 private:
  void ReadKeys();
  void Restore();
  void Suspend();
  std::optional<Event> TakeSignal();
  bool TakeKeys();

  bool shows_ = false;
  bool keys_ = false;  // are read
  termios before_{};   // where they are
  sigset_t blocked_before_{};
  UniqueFd signals_;
};

}  // namespace flotilla
