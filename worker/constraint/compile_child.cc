#include "worker/constraint/compile_child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/rt/allocator.h"
#include "common/rt/frames.h"
#include "common/rt/unique_fd.h"
#include "worker/constraint/compile_messages.h"
#include "worker/constraint/grammar.h"

namespace flotilla::worker {
namespace {

// Takes the socket from standard output, where other code may write. FAILED_PRECONDITION: it is
// none.
absl::StatusOr<UniqueFd> TakeSocket() {
  struct stat output;
  if (fstat(STDOUT_FILENO, &output) != 0 || !S_ISSOCK(output.st_mode)) {
    return absl::FailedPreconditionError(
        "compile-constraints is started by workers, with their socket as standard output");
  }
  UniqueFd socket(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  const UniqueFd nothing(open("/dev/null", O_WRONLY | O_CLOEXEC));
  dup2(nothing.get(), STDOUT_FILENO);
  return socket;
}

// The memory that this process has mapped, in bytes.
std::uint64_t MappedBytes() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

void LimitMemory(std::uint64_t bytes) {
  const rlim_t most = MappedBytes() + bytes;
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  setrlimit(RLIMIT_AS, &limit);
}

// Ends the process once it has used so much more processor time; 0: never.
void LimitTime(std::int64_t us) {
  const itimerval timer{.it_interval = {}, .it_value = {us / 1'000'000, us % 1'000'000}};
  setitimer(ITIMER_PROF, &timer, nullptr);
}

// The next message, or UNAVAILABLE when the worker is gone.
absl::StatusOr<std::string> Read(int socket) {
  FrameReader reader;  // the worker waits for an answer, so nothing comes behind the message
  while (true) {
    if (const absl::StatusOr<bool> read = reader.ReadFrom(socket); !read.ok()) return read.status();
    if (std::optional<std::string> message = reader.Next()) return *std::move(message);
  }
}

}  // namespace

absl::Status RunCompileChild() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NAME, "flotilla-gram");
  const rlimit no_core{.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const absl::StatusOr<UniqueFd> socket = TakeSocket();
  if (!socket.ok()) return socket.status();
  const absl::StatusOr<std::string> message = Read(socket->get());
  if (!message.ok()) return message.status();
  const absl::StatusOr<CompileSetup> setup = DecodeSetup(*message);
  if (!setup.ok()) return setup.status();
  const absl::StatusOr<std::shared_ptr<const GrammarVocabulary>> vocabulary =
      GrammarVocabulary::Create(setup->vocabulary);
  if (!vocabulary.ok()) return vocabulary.status();
  LimitMemory(setup->limits.memory_bytes);
  std::string answer;  // of the vocabulary
  while (true) {
    if (absl::Status status = WriteAll(socket->get(), Frame(answer)); !status.ok()) return status;
    answer = {};
    ReturnFreeMemory();  // a compile may have taken all that the limit allows
    const absl::StatusOr<std::string> next = Read(socket->get());
    if (absl::IsUnavailable(next.status())) return absl::OkStatus();
    if (!next.ok()) return next.status();
    const absl::StatusOr<Constraint> constraint = DecodeConstraint(*next);
    if (!constraint.ok()) return constraint.status();
    LimitTime(setup->limits.cpu_us);
    answer =
        EncodeCompiled(CompileConstraint(*constraint, **vocabulary, setup->limits.compiled_bytes));
    LimitTime(0);
  }
}

}  // namespace flotilla::worker
