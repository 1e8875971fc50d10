#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "common/types/text.h"

namespace flotilla::model {
namespace {

// A clone without Git LFS has text files that begin so in place of the large ones.
constexpr std::string_view kLfsPointer = "version https://git-lfs.github.com/spec/";

}  // namespace

absl::StatusOr<std::unique_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: to open a FIFO waits for nobody.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, Cat("cannot open ", path));
  struct stat info;
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) {
    close(fd);
    return InvalidArgument(path, " is not a file with content");
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_errno = errno;
  close(fd);
  if (address == MAP_FAILED) return absl::ErrnoToStatus(map_errno, Cat("cannot map ", path));
  std::unique_ptr<const MappedFile> file(new MappedFile(address, size));
  if (std::string_view(static_cast<const char*>(address), size).starts_with(kLfsPointer)) {
    return InvalidArgument(path,
                           " is a pointer of Git LFS and not the file itself, which `git lfs "
                           "pull` fetches");
  }
  return file;
}

MappedFile::~MappedFile() { munmap(address_, size_); }

// The map is private and was never written, so the file has all that the pages have.
void MappedFile::ReleasePages() const { madvise(address_, size_, MADV_DONTNEED); }

}  // namespace flotilla::model
