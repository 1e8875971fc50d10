#include "worker/group/directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace flotilla::worker {
namespace {

// The most names in the temporary directory that one start looks at, and the most directories
// that it removes.
constexpr int kMaxNames = 100'000;
constexpr int kMaxRemoved = 1000;
// How often a new directory is made, because another agent may take one for stale before it
// is locked. On a busy machine a test has seen that 16 times in a row.
constexpr int kMaxTries = 1000;

// Locks a directory of this user. None: there is no such directory, or another process holds
// the lock.
UniqueFd Lock(const std::string& path) {
  UniqueFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!directory.ok() || fstat(directory.get(), &info) != 0 || info.st_uid != geteuid() ||
      flock(directory.get(), LOCK_EX | LOCK_NB) != 0) {
    return UniqueFd();
  }
  return directory;
}

// Whether `path` still names the directory that `directory` has open.
bool IsStillThere(const std::string& path, const UniqueFd& directory) {
  struct stat by_path {
  }, by_fd{};
  return lstat(path.c_str(), &by_path) == 0 && fstat(directory.get(), &by_fd) == 0 &&
         by_path.st_dev == by_fd.st_dev && by_path.st_ino == by_fd.st_ino;
}

// Whether nobody listens at the socket.
bool IsDead(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return false;
  std::copy(path.begin(), path.end(), address.sun_path);
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return fd.ok() &&
         connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 &&
         (errno == ECONNREFUSED || errno == ENOENT);
}

}  // namespace

absl::StatusOr<GroupDirectory> MakeGroupDirectory(const std::string& temporary) {
  const auto failed = [&] {
    return absl::UnavailableError(
        absl::StrCat("a directory in '", temporary, "': ", std::strerror(errno)));
  };
  for (int tries = 0; tries < kMaxTries; ++tries) {
    GroupDirectory made{.path = absl::StrCat(temporary, "/", kDirectoryPrefix, "XXXXXX")};
    if (mkdtemp(made.path.data()) == nullptr) return failed();  // 0700
    made.lock = Lock(made.path);
    if (made.lock.ok() && IsStillThere(made.path, made.lock)) return made;
    // Either another starting agent was faster and removes the directory, or the file system
    // has no locks.
    const UniqueFd unlocked(open(made.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (unlocked.ok() && flock(unlocked.get(), LOCK_EX) != 0) return made;
  }
  errno = EAGAIN;
  return failed();
}

void RemoveStaleDirectories(const std::string& temporary) {
  std::error_code error;
  std::filesystem::directory_iterator entry(temporary, error);
  int names = 0, removed = 0;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (++names > kMaxNames || removed == kMaxRemoved) return;
    if (!absl::StartsWith(entry->path().filename().native(), kDirectoryPrefix)) continue;
    const std::string path = entry->path();
    const UniqueFd lock = Lock(path);
    // An agent of an earlier version has no lock, but it listens on its socket.
    if (!lock.ok() || !IsDead(absl::StrCat(path, "/", kAgentSocket))) continue;
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
    ++removed;
  }
}

}  // namespace flotilla::worker
