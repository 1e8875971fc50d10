#include "rpc/grpc_log.h"

#include <unistd.h>

#include <string>

#include "absl/base/const_init.h"
#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "grpc/support/log.h"

namespace flotilla::rpc {
namespace {

// gRPC's hook takes no argument of ours, so this must be global. It is held while a line is
// queued, which is short, because gRPC's threads may still run when the log has gone.
ABSL_CONST_INIT absl::Mutex g_mu(absl::kConstInit);
Logger* g_log ABSL_GUARDED_BY(g_mu) = nullptr;

// Whether this is a message before gRPC aborts. No thread would take it from a queue any more.
bool IsLastWord(const gpr_log_func_args& line) {
  return line.severity == GPR_LOG_SEVERITY_ERROR &&
         absl::StartsWith(line.message, "assertion failed");
}

void Take(gpr_log_func_args* line) {
  const std::string path = line->file;
  const std::string file = path.substr(path.rfind('/') + 1);
  if (IsLastWord(*line)) {
    const std::string text =
        absl::StrCat("grpc: ", line->message, " at ", file, ":", line->line, "\n");
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  }
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
