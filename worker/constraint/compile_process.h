// The worker's end of the process that compiles grammars. The process is started when there is
// something to compile and none runs. The compiler's thread owns it (compiler.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/rt/unique_fd.h"
#include "common/types/constraint.h"
#include "worker/constraint/compile_messages.h"

namespace flotilla::worker {

class CompileProcess {
 public:
  // `program`: the path of a flotilla, which is called with the word compile-constraints.
  CompileProcess(std::string program, CompileSetup setup);
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
  absl::Status Start(std::int64_t deadline_ns);
  // UNAVAILABLE: the process has closed its socket. The other errors are those of Compile.
  absl::Status Write(absl::string_view message, std::int64_t deadline_ns);
  // Waits until the socket is ready for `events`.
  absl::Status Await(short events, std::int64_t deadline_ns);
  // Waits for a message. UNAVAILABLE: the process has closed its socket.
  absl::StatusOr<std::string> Read(std::int64_t deadline_ns);
  // Whether the process has ended, or has said something that nobody has asked for.
  bool IsBroken() const;
  // Ends the process if it runs, and returns what waitpid says about it.
  int End();

  const std::string program_;
  const CompileSetup setup_;
  UniqueFd stop_;  // an eventfd, readable from Stop on
  UniqueFd socket_;
  pid_t pid_ = 0;  // 0: none runs
};

}  // namespace flotilla::worker
