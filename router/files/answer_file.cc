#include "router/files/answer_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/files/file_io.h"

namespace flotilla::router {
namespace {

// The most bytes of a line of the output. The longest answer that a request can have is shorter.
constexpr std::size_t kMaxAnswerBytes = std::size_t{1} << 30;

}  // namespace

absl::StatusOr<AnswerFile> AnswerFile::Open(const std::string& path, Disk* disk) {
  if (path == "-") return AnswerFile("standard output", UniqueFd(dup(STDOUT_FILENO)), false, disk);
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.ok()) return ErrnoError("cannot open", path);
  const bool regular = IsRegular(fd.get());
  if (regular && flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoError("cannot lock", path);
    return absl::UnavailableError(
        absl::StrCat("another flotilla run writes to ", path, "; choose another --output"));
  }
  if (regular) {  // so that the file's name, too, outlives a crash of the system
    const std::string folder = std::filesystem::path(path).parent_path().string();
    const UniqueFd parent(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC));
    if (!parent.ok() || !disk->Sync(parent.get()))
      return ErrnoError("cannot sync the folder of", path);
  }
  return AnswerFile(path, std::move(fd), regular, disk);
}

absl::Status AnswerFile::Error(std::string_view what) const { return ErrnoError(what, path_); }

absl::StatusOr<AnswerFile::Recovered> AnswerFile::Recover(
    const std::function<absl::Status(std::string_view)>& on_line, std::size_t bytes) {
  if (!regular_) return Recovered::kWhole;
  if (recovery_ == nullptr) recovery_ = std::make_unique<LineReader>(fd_.get(), kMaxAnswerBytes);
  for (std::size_t read = 0; read < bytes;) {
    const absl::StatusOr<std::optional<TextLine>> line = recovery_->Next();
    if (!line.ok()) {
      return absl::Status(line.status().code(), absl::StrCat(path_, ": ", line.status().message()));
    }
    if (!line->has_value()) {
      recovery_.reset();
      return Recovered::kWhole;
    }
    if (!(*line)->whole) {
      if (ftruncate(fd_.get(), static_cast<off_t>((*line)->begin)) != 0) {
        return Error("cannot cut off the torn last line of");
      }
      recovery_.reset();
      return Recovered::kTorn;
    }
    read += (*line)->text.size() + 1;
    if (absl::Status s = on_line((*line)->text); !s.ok()) {
      return absl::Status(s.code(),
                          absl::StrCat(path_, " line ", (*line)->number, ": ", s.message()));
    }
  }
  return Recovered::kMore;
}

absl::Status AnswerFile::Append(std::string_view lines) {
  struct stat before {};
  const bool known = regular_ && fstat(fd_.get(), &before) == 0;
  if (WriteAll(fd_.get(), lines)) return absl::OkStatus();
  absl::Status error = Error("cannot write to");
  if (known && ftruncate(fd_.get(), before.st_size) != 0) {
    error = Error("cannot cut off half a line of");
  }
  return error;
}

absl::Status AnswerFile::Sync() {
  if (!regular_ || !lost_.ok()) return lost_;
  struct stat stat {};
  if (fstat(fd_.get(), &stat) != 0 || !disk_->Sync(fd_.get())) {
    lost_ = Error("cannot sync");
  } else {
    synced_bytes_ = static_cast<std::uint64_t>(stat.st_size);
  }
  return lost_;
}

absl::Status AnswerFile::DropUnsynced() {
  if (!regular_ || ftruncate(fd_.get(), static_cast<off_t>(synced_bytes_)) == 0) {
    return absl::OkStatus();
  }
  return Error("cannot drop the last lines of");
}

}  // namespace flotilla::router
