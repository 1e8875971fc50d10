#include "router/files/file_io.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace flotilla::router {

absl::Status ErrnoError(std::string_view what, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat(std::string(what), " ", path, ": ", std::strerror(errno)));
}

bool IsRegular(int fd) {
  struct stat stat {};
  return fstat(fd, &stat) == 0 && S_ISREG(stat.st_mode);
}

bool ReadAt(int fd, std::uint64_t at, std::string& text) {
  for (std::size_t got = 0; got < text.size();) {
    const ssize_t n = pread(fd, text.data() + got, text.size() - got, static_cast<off_t>(at + got));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    got += static_cast<std::size_t>(n);
  }
  return true;
}

bool WriteAt(int fd, std::uint64_t at, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = pwrite(fd, text.data(), text.size(), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
    at += static_cast<std::uint64_t>(written);
  }
  return true;
}

}  // namespace flotilla::router
