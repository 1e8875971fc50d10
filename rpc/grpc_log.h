// GrpcLog: writes gRPC's own log messages to this process's log.
//
// By default gRPC writes to standard error from the thread that it is on, which may be the one
// that receives every call. That thread then blocks if the reader of standard error is slow.
#pragma once

#include "common/obs/log.h"

namespace flotilla::rpc {

// There is at most one at a time. main creates it before the first of gRPC's threads starts.
class GrpcLog {
 public:
  // gRPC's errors become warnings, the rest debug lines. `log` outlives it.
  explicit GrpcLog(Logger* log);
  // After this no message of gRPC is logged.
  ~GrpcLog();
  GrpcLog(const GrpcLog&) = delete;
  GrpcLog& operator=(const GrpcLog&) = delete;
};

}  // namespace flotilla::rpc
