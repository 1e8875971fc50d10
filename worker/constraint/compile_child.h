// `flotilla compile-constraints`: the process in which a worker's grammars are compiled. A compile
// can take any time and memory and can crash, so the worker starts this process with the first
// constraint (compile_process.h), and starts another after a death.
#pragma once

#include "absl/status/status.h"

namespace flotilla::worker {

// The main program. Standard output is the worker's socket. The process leaves no
// core dump, and ends with the worker. A compile that takes too long ends it by
// SIGPROF. Returns OK when the worker has closed the socket; else why there is no more to do.
absl::Status RunCompileChild();

}  // namespace flotilla::worker
