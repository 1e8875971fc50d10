#include "worker/group/directory.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rt/unique_fd.h"

namespace flotilla {
namespace {

constexpr std::time_t kYoungSeconds = 60;

// Whether it is a directory of this user that has not changed for a while.
bool IsOld(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
         info.st_mtime + kYoungSeconds < std::time(nullptr);
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

void RemoveStaleDirectories(const std::string& temporary) {
  std::error_code error;
  std::filesystem::directory_iterator entry(temporary, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string path = entry->path();
    if (!absl::StartsWith(entry->path().filename().native(), kDirectoryPrefix)) continue;
    if (!IsOld(path) || !IsDead(absl::StrCat(path, "/", kAgentSocket))) continue;
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
}

}  // namespace flotilla
