// GrpcLog: what gRPC itself has to say, in this process's log.
//
// Left alone it writes to standard error from whatever thread it is on, also the one that
// receives every call, and so stands still with who reads that.
#pragma once

#include "common/obs/log.h"

namespace flotilla::rpc {

// One at a time; main makes it, before the first of gRPC's threads.
class GrpcLog {
 public:
  // gRPC's errors become warnings, the rest debug lines. `log` outlives it.
  explicit GrpcLog(Logger* log);
  // After this nothing is logged.
  ~GrpcLog();
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;
};

}  // namespace flotilla::rpc
