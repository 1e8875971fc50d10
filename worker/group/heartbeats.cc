#include "worker/group/heartbeats.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla::worker {
namespace {

std::size_t Bytes(int ranks) { return sizeof(HeartbeatSlot) * static_cast<std::size_t>(ranks); }

absl::Status PageFailed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat("heartbeat page: ", what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<HeartbeatPage> HeartbeatPage::Map(int fd, int ranks, std::string path) {
  void* at = mmap(nullptr, Bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    const absl::Status failed = PageFailed("mmap");
    close(fd);
    return failed;
  }
  return HeartbeatPage(fd, static_cast<HeartbeatSlot*>(at), ranks, std::move(path));
}

absl::StatusOr<HeartbeatPage> HeartbeatPage::Create(int ranks) {
  const int fd = memfd_create("flotilla-heartbeats", MFD_CLOEXEC);
  if (fd < 0) return PageFailed("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(Bytes(ranks))) != 0) {
    const absl::Status failed = PageFailed("ftruncate");
    close(fd);
    return failed;
  }
  return Map(fd, ranks, absl::StrCat("/proc/", getpid(), "/fd/", fd));
}

absl::StatusOr<HeartbeatPage> HeartbeatPage::Open(const std::string& path, int ranks) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat info;
  if (fd < 0 || fstat(fd, &info) != 0 || info.st_size != static_cast<off_t>(Bytes(ranks))) {
    if (fd >= 0) close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' is no heartbeat page of ", ranks, " ranks"));
  }
  return Map(fd, ranks, path);
}

HeartbeatPage::HeartbeatPage(HeartbeatPage&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      slots_(std::exchange(other.slots_, nullptr)),
      ranks_(other.ranks_),
      path_(std::move(other.path_)) {}

HeartbeatPage::~HeartbeatPage() {
  if (slots_ == nullptr) return;
  munmap(slots_, Bytes(ranks_));
  close(fd_);
}

}  // namespace flotilla::worker
