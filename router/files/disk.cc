#include "router/files/disk.h"

#include <fcntl.h>
#include <unistd.h>

#include "router/files/file_io.h"

namespace flotilla::router {

bool Disk::Sync(int fd) {
  if (DoSync(fd)) return true;
  ++failures_;
  return false;
}

bool Disk::DoSync(int fd) { return (IsRegular(fd) ? fdatasync(fd) : fsync(fd)) == 0; }

bool Disk::WriteAgain(int fd, std::uint64_t at, std::string_view text) {
  // Linux appends what is written to a file with O_APPEND, wherever it should go.
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_APPEND) != 0) return false;
  const bool written = WriteAt(fd, at, text);
  return fcntl(fd, F_SETFL, flags) == 0 && written;
}

}  // namespace flotilla::router
