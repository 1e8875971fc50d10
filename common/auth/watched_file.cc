#include "common/auth/watched_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"

namespace flotilla {
namespace {

std::int64_t Nanoseconds(const timespec& t) { return t.tv_sec * 1'000'000'000 + t.tv_nsec; }

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

std::optional<FileStamp> StampOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return FileStamp{.device = info.st_dev,
                   .inode = info.st_ino,
                   .size = info.st_size,
                   .modified_ns = Nanoseconds(info.st_mtim),
                   .changed_ns = Nanoseconds(info.st_ctim)};
}

absl::StatusOr<std::string> ReadSecretFile(const std::string& path, bool* others_may_read) {
  // Without O_NONBLOCK, open would wait for the other end of a pipe.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  struct stat info {};
  if (fstat(file.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot look at ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a regular file"));
  }
  if ((info.st_mode & S_IWOTH) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " can be written by everybody: chmod o-w"));
  }
  if (others_may_read != nullptr) *others_may_read = (info.st_mode & S_IROTH) != 0;
  std::string text;
  std::array<char, 4096> chunk;
  while (true) {
    const ssize_t bytes = read(file.get(), chunk.data(), chunk.size());
    if (bytes == 0) return text;
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    text.append(chunk.data(), static_cast<std::size_t>(bytes));
    if (text.size() > kMaxSecretFileBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, " is larger than ", kMaxSecretFileBytes, " bytes"));
    }
  }
}

std::optional<std::string> FileWatch::Look() {
  const std::int64_t now_ns = options_.clock->NowNs();
  if (now_ns < next_look_ns_) return std::nullopt;
  next_look_ns_ = now_ns + absl::ToInt64Nanoseconds(options_.check_every);
  const std::optional<FileStamp> stamp = StampOf(options_.path);
  const bool changed = stamp != stamp_;
  if (!changed && settled_) return std::nullopt;
  stamp_ = stamp;
  settled_ = !changed;
  absl::StatusOr<std::string> text = ReadSecretFile(options_.path, nullptr);
  if (!text.ok()) {
    Complain(text.status());
    return std::nullopt;
  }
  if (taken_.has_value() && SecretDigest::Of(*text) == *taken_) {
    complaint_.clear();
    return std::nullopt;
  }
  return *std::move(text);
}

void FileWatch::Taken(std::string_view text, const absl::Status& status) {
  if (!status.ok()) return Complain(status);
  complaint_.clear();
  if (taken_.has_value()) options_.log->Info("read again", {{"file", options_.path}});
  taken_ = SecretDigest::Of(text);
}

void FileWatch::Complain(const absl::Status& status) {
  const std::string complaint = status.ToString();
  if (complaint == complaint_) return;
  complaint_ = complaint;
  options_.log->Error("a file of secrets cannot be used; its last good content stays in use",
                      {{"file", options_.path}, {"reason", status}});
}

}  // namespace flotilla
