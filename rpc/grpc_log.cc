#include "rpc/grpc_log.h"

#include <string>

#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "grpc/support/log.h"

namespace flotilla::rpc {
namespace {

// gRPC's hook takes no argument of ours, so this has to be global. Held while a line is
// queued, which is short: gRPC's threads may go on when the log has gone.
ABSL_CONST_INIT absl::Mutex g_mu(absl::kConstInit);
Logger* g_log ABSL_GUARDED_BY(g_mu) = nullptr;

void Take(gpr_log_func_args* line) {
  const std::string path = line->file;
  const std::string file = path.substr(path.rfind('/') + 1);
  absl::MutexLock lock(&g_mu);
  if (g_log == nullptr) return;
  g_log->Log(line->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarning : LogLevel::kDebug,
             "grpc", {{"says", line->message}, {"at", absl::StrCat(file, ":", line->line)}});
}

}  // namespace

GrpcLog::GrpcLog(Logger* log) {
  {
    absl::MutexLock lock(&g_mu);
    g_log = log;
  }
  gpr_set_log_function(&Take);
}

GrpcLog::~GrpcLog() {
  absl::MutexLock lock(&g_mu);
  g_log = nullptr;
}

}  // namespace flotilla::rpc
