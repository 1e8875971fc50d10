#include "worker/group/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/rt/unique_fd.h"

namespace flotilla::worker {
namespace {

// The beginning of a file; empty if it cannot be read.
std::string ReadSome(const std::string& path, std::size_t limit) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(file.ok() ? limit : 0, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = read(file.get(), text.data() + size, text.size() - size);
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return text;
}

// The kernel's struct pidfd_info, in its first version, and the bit of its mask that asks for the
// exit code. The headers of older systems have neither.
struct PidfdInfo {
  std::uint64_t mask = 0;
  std::uint64_t cgroup = 0;
  std::uint32_t ids[11] = {};  // of process and user
  std::int32_t exit_code = 0;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr std::uint64_t kPidfdExit = 8;

}  // namespace

char ProcessState(pid_t pid) {
  // The format is PID (NAME) STATE ...; the name may hold any character, brackets too.
  const std::string stat = ReadSome(absl::StrCat("/proc/", pid, "/stat"), 512);
  const std::size_t end = stat.rfind(") ");
  return end == std::string::npos || end + 2 >= stat.size() ? 'X' : stat[end + 2];
}

std::vector<pid_t> ProcessesWithArguments(const std::vector<std::string>& arguments) {
  std::string text;  // as the kernel writes them: each between null bytes
  for (const std::string& argument : arguments) text.append(1, '\0').append(argument);
  text.append(1, '\0');
  std::vector<pid_t> found;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return found;
  while (const dirent* entry = readdir(proc)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid) || pid == getpid()) continue;
    const std::string words = ReadSome(absl::StrCat("/proc/", pid, "/cmdline"), 64 << 10);
    if (words.find(text) != std::string::npos) found.push_back(pid);
  }
  closedir(proc);
  return found;
}

bool HasEnded(int pidfd) {
  pollfd one{.fd = pidfd, .events = POLLIN, .revents = 0};
  return poll(&one, 1, 0) > 0;
}

std::optional<int> WaitStatus(int pidfd) {
  PidfdInfo info{.mask = kPidfdExit};
  if (ioctl(pidfd, _IOWR(0xFF, 11, PidfdInfo), &info) != 0) return std::nullopt;
  if ((info.mask & kPidfdExit) == 0) return std::nullopt;
  return info.exit_code;
}

}  // namespace flotilla::worker
