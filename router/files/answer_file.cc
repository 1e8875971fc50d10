#include "router/files/answer_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rt/write_to_file.h"
#include "router/files/file_io.h"

namespace flotilla::router {
namespace {

// The most bytes of a line of the output. The longest answer that a request can have is shorter.
constexpr std::size_t kMaxAnswerBytes = std::size_t{1} << 30;
// Lines are written again in pieces of about this size.
constexpr std::size_t kAgainBytes = 256 << 10;
// They are synced when so many were written, so that no sync takes a long time.
constexpr std::size_t kAgainSyncBytes = 8 << 20;

}  // namespace

absl::StatusOr<AnswerFile> AnswerFile::Open(const std::string& path, Disk* disk,
                                            std::uint64_t kept) {
  if (path == "-") {
    return AnswerFile("standard output", UniqueFd(dup(STDOUT_FILENO)), false, disk, 0);
  }
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
  return AnswerFile(path, std::move(fd), regular, disk, kept);
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
      if (absl::Status s = WriteAgain(); !s.ok()) return s;
      EndAt(read_end_);
      recovery_.reset();
      return Recovered::kWhole;
    }
    const absl::Status s = (*line)->whole ? on_line((*line)->text) : absl::OkStatus();
    if (!(*line)->whole || absl::IsDataLoss(s)) {
      if (absl::Status kept = WriteAgain(); !kept.ok()) return kept;
      if (ftruncate(fd_.get(), static_cast<off_t>((*line)->begin)) != 0) {
        return Error("cannot cut off the last lines of");
      }
      EndAt((*line)->begin);
      recovery_.reset();
      return (*line)->whole ? Recovered::kDamaged : Recovered::kTorn;
    }
    if (!s.ok()) {
      return absl::Status(s.code(),
                          absl::StrCat(path_, " line ", (*line)->number, ": ", s.message()));
    }
    read += (*line)->text.size() + 1;
    read_end_ = (*line)->begin + (*line)->text.size() + 1;
    if (read_end_ <= kept_) continue;
    if (again_.empty()) again_at_ = (*line)->begin;
    again_ += (*line)->text;
    again_ += '\n';
    if (again_.size() < kAgainBytes) continue;
    if (absl::Status kept = WriteAgain(); !kept.ok()) return kept;
    if (again_bytes_ < kAgainSyncBytes) continue;
    if (absl::Status kept = Sync(); !kept.ok()) return kept;
  }
  if (absl::Status s = again_bytes_ < kAgainSyncBytes ? WriteAgain() : Sync(); !s.ok()) return s;
  return Recovered::kMore;
}

absl::Status AnswerFile::WriteAgain() {
  const std::string lines = std::exchange(again_, {});
  if (lines.empty()) return absl::OkStatus();
  again_bytes_ += lines.size();
  if (!disk_->WriteAgain(fd_.get(), again_at_, lines)) {
    return Lose("cannot write again what is in");
  }
  written_ = again_at_ + lines.size();
  return absl::OkStatus();
}

absl::Status AnswerFile::Lose(std::string_view what) {
  kept_ = 0;
  return lost_ = Error(what);
}

void AnswerFile::EndAt(std::uint64_t end) {
  kept_ = std::min(kept_, end);
  written_ = end;
}

absl::Status AnswerFile::Append(std::string_view lines) {
  struct stat before {};
  const bool known = regular_ && fstat(fd_.get(), &before) == 0;
  if (WriteToFile(fd_.get(), lines)) {
    const bool ours = known && static_cast<std::uint64_t>(before.st_size) == written_;
    if (ours) written_ += lines.size();
    return absl::OkStatus();
  }
  absl::Status error = Error("cannot write to");
  if (known && ftruncate(fd_.get(), before.st_size) != 0) {
    error = Error("cannot cut off half a line of");
  }
  return error;
}

absl::Status AnswerFile::Sync() {
  if (!regular_ || !lost_.ok()) return lost_;
  if (absl::Status s = WriteAgain(); !s.ok()) return s;
  again_bytes_ = 0;
  if (!disk_->Sync(fd_.get())) return Lose("cannot sync");
  kept_ = written_;
  return absl::OkStatus();
}

}  // namespace flotilla::router
