#include "common/rt/write_to_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace flotilla {

bool WriteToFile(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    constexpr std::size_t kMost = 1 << 30;  // systems take less than 2^31 at once
    const ssize_t written = write(fd, bytes.data(), std::min(bytes.size(), kMost));
    if (written < 0 && errno == EINTR) continue;
    if (written == 0) errno = EIO;  // no system should do this, and nothing says why it did
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace flotilla
