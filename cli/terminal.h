// Terminal: the keyboard and the width of the terminal that `flotilla top` runs in, and the
// signals that the program handles. One thread.
#pragma once

#include <termios.h>

#include <cstddef>
#include <optional>

#include "absl/time/time.h"
#include "common/rt/unique_fd.h"

namespace flotilla::cli {

class Terminal {
 public:
  // Blocks SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP and SIGWINCH, which become events, and
  // ignores SIGPIPE. If standard input is a terminal that this process may read (the process is
  // not in the background), keys are read one by one and are not shown until the end.
  Terminal();
  // Restores the terminal and the signals.
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // kQuit: the user typed q, a signal asks to stop, or the terminal is gone.
  enum class Event { kTimeout, kQuit, kResized };
  // Waits for the next event, at most until `deadline`. A stop of the job (^Z) happens inside
  // this call, with the terminal's settings restored; it returns kResized when the job continues.
  Event Wait(absl::Time deadline);

  // Whether standard output is a terminal.
  bool shows() const { return shows_; }
  // The columns of standard output, from the terminal or else from $COLUMNS. None: no bound.
  std::optional<std::size_t> columns() const;

 private:
  void ReadKeys();
  void Restore();
  void Suspend();
  std::optional<Event> TakeSignal();
  bool TakeKeys();

  bool shows_ = false;
  bool keys_ = false;  // keys are read
  termios before_{};   // the settings to restore, if keys_
  sigset_t blocked_before_{};
  UniqueFd signals_;
};

}  // namespace flotilla::cli
