// AnswerFile: the answers of a batch. It is only appended to, and tells what an earlier process has
// written. One thread.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rt/unique_fd.h"

namespace flotilla::router {

class AnswerFile {
 public:
  // Opens the file, or makes it. "-" is standard output. If it is a regular file, no other process
  // may have it open as AnswerFile. Errors name the path.
  static absl::StatusOr<AnswerFile> Open(const std::string& path);

  // Calls `on_line` for every whole line of a regular file, in order, and ends with its first
  // error, which then names the line. What follows the last whole line is cut off: a process was
  // killed while it wrote it. True: something was cut off.
  absl::StatusOr<bool> Recover(const std::function<absl::Status(std::string_view)>& on_line);

  // Appends whole lines. UNAVAILABLE names the path and the system's error, e.g. a full disk. Then
  // some of the lines may be in the file, and a part of one.
  absl::Status Append(std::string_view lines);

  // Returns when all lines are on the disk, if it is one.
  absl::Status Sync();

  int fd() const { return fd_.get(); }

 private:
  AnswerFile(std::string path, UniqueFd fd, bool regular)
      : path_(std::move(path)), fd_(std::move(fd)), regular_(regular) {}
  absl::Status Error(std::string_view what) const;

  std::string path_;
  UniqueFd fd_;
  bool regular_ = false;
};

}  // namespace flotilla::router
