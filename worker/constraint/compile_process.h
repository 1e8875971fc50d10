// The worker's end of the process that compiles grammars. The process is started when there is
// something to compile and none runs. The compiler's thread owns it (compiler.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/rt/frames.h"
#include "common/rt/unique_fd.h"
#include "common/types/constraint.h"
#include "worker/constraint/compile_messages.h"

namespace flotilla::worker {

// The priority at which the process compiles, as nice values have it. It is the lowest, 19, because
// those that generate tokens must not wait for it. At this priority, though, a machine that has
// many other things to do hardly runs it: with 13 processes for 2 cores, 10 ms of processor time
// took 11 s at 19, and 1.6 s at 10. So a compile that does not get on begins again in another
// process, whose nice value is half as far from the highest one, and so on.
struct CompilePriority {
  std::int32_t nice = 19;
  // The highest priority, as a nice value above the worker's own.
  static constexpr std::int32_t kHighest = 5;
  // A compile starves if it has a processor for less than a 200th of such a time. Beside one thread
  // that always computes, it has a seventieth.
  absl::Duration starving = absl::Seconds(2);
  // How long later compiles keep a priority that was raised.
  absl::Duration raised = absl::Seconds(10);
};

class CompileProcess {
 public:
  // `program`: the path of a flotilla, which is called with the word compile-constraints.
  CompileProcess(std::string program, CompileSetup setup, CompilePriority priority = {});
  // Ends the process.
  ~CompileProcess();

  // Returns a text for Grammar::Read. One thread at a time calls it.
  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED: what CompileConstraint says. ABORTED: the constraint has
  // ended the process, by its time or by a crash. DEADLINE_EXCEEDED: there was no result within
  // `patience`, and the process was ended. UNAVAILABLE: the process cannot be started. CANCELLED:
  // Stop was called.
  absl::StatusOr<std::string> Compile(const Constraint& constraint, absl::Duration patience);

  // Ends a Compile that runs, and all later ones. Any thread.
  void Stop();

 private:
  // Makes the process ready for a constraint, and gives it its priority.
  absl::Status Start(std::int64_t deadline_ns);
  // Has the constraint compiled. Returns nothing if it starves and the priority can be raised.
  absl::StatusOr<std::optional<std::string>> Ask(const Constraint& constraint,
                                                 std::int64_t deadline_ns);
  // Ends the process; the next one has a higher priority.
  void RaisePriority();
  // The processor time that the process has had; nothing if it cannot be read.
  std::optional<std::int64_t> CpuNs() const;
  // UNAVAILABLE: the process has closed its socket. The other errors are those of Compile.
  absl::Status Write(absl::string_view message, std::int64_t deadline_ns);
  // Waits until the socket is ready for `events`.
  absl::Status Await(short events, std::int64_t deadline_ns);
  // Waits for a message. UNAVAILABLE: the process has closed its socket.
  absl::StatusOr<std::string> Read(FrameReader& reader, std::int64_t deadline_ns);
  // Whether the process has ended, or has said something that nobody has asked for.
  bool IsBroken() const;
  // Ends the process if it runs, and returns what waitpid says about it.
  int End();

  const std::string program_;
  const CompileSetup setup_;
  const CompilePriority priority_;
  const std::int32_t highest_;  // no nice value is less
  UniqueFd stop_;               // an eventfd, readable from Stop on
  UniqueFd socket_;
  pid_t pid_ = 0;      // 0: none runs
  std::int32_t nice_;  // of the process, if that is more than the worker's own
  std::int64_t raised_until_ns_ = 0;
};

}  // namespace flotilla::worker
