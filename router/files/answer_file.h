// AnswerFile: the answers of a batch. It is only appended to, and tells what an earlier process has
// written. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/rt/unique_fd.h"
#include "router/files/disk.h"
#include "router/files/line_reader.h"

namespace flotilla::router {

class AnswerFile {
 public:
  // Opens the file, or makes it. "-" is standard output. If it is a regular file, no other process
  // may have it open as AnswerFile. Errors name the path. `disk` outlives it.
  //
  // `kept`: what an earlier AnswerFile of this process has said of the file as kept().
  static absl::StatusOr<AnswerFile> Open(const std::string& path, Disk* disk,
                                         std::uint64_t kept = 0);

  enum class Recovered : std::uint8_t {
    kMore,     // there may be more lines: Recover is to be called again
    kWhole,    // all lines were read
    kTorn,     // the same, and what followed the last whole line was cut off
    kDamaged,  // the same, and a damaged line was cut off with all that followed it
  };
  // Calls `on_line` for the next whole lines of a regular file, in order, and ends with its first
  // error, which then names the line; DATA_LOSS means that the line is damaged, and is none. It
  // stops once it has read `bytes`. What follows the last whole line is cut off: a process was
  // killed while it wrote it.
  //
  // Lines that were read are written again, and some may be synced. So Sync then says of them, too,
  // whether they are on the disk: who wrote them may have had a sync that failed (see Disk). Those
  // that this process has itself written and synced are only read.
  // Errors: UNAVAILABLE, as those of Append and Sync.
  absl::StatusOr<Recovered> Recover(const std::function<absl::Status(std::string_view)>& on_line,
                                    std::size_t bytes = std::numeric_limits<std::size_t>::max());

  // Appends whole lines. UNAVAILABLE names the path and the system's error, e.g. a full disk. Then
  // none of the lines is in a regular file, unless it cannot be cut off either.
  absl::Status Append(std::string_view lines);

  // Returns when all lines are on the disk, if it is one. After an error all later calls fail, too:
  // the system may then have lost lines, and says so only once. Another AnswerFile that recovers
  // the lines can sync them.
  absl::Status Sync();

  // How many bytes at the beginning of the file this process has written, and then synced. None
  // after an error of Sync, or of writing again.
  std::uint64_t kept() const { return kept_; }

  int fd() const { return fd_.get(); }

 private:
  AnswerFile(std::string path, UniqueFd fd, bool regular, Disk* disk, std::uint64_t kept)
      : path_(std::move(path)),
        fd_(std::move(fd)),
        regular_(regular),
        disk_(disk),
        kept_(kept),
        written_(kept) {}
  absl::Status Error(std::string_view what) const;
  // Writes again what was read and is in again_.
  absl::Status WriteAgain();
  absl::Status Lose(std::string_view what);
  // All lines were read, and the file ends here.
  void EndAt(std::uint64_t end);

  std::string path_;
  UniqueFd fd_;
  bool regular_ = false;
  Disk* disk_ = nullptr;
  std::unique_ptr<LineReader> recovery_;  // null: Recover has not begun, or has ended
  std::uint64_t read_end_ = 0;            // of the last line that was read
  std::string again_;                     // lines that were read, and not yet written again
  std::uint64_t again_at_ = 0;            // where they are in the file
  std::size_t again_bytes_ = 0;           // that were written again since the last sync
  std::uint64_t kept_ = 0;                // see kept()
  std::uint64_t written_ = 0;             // the same with what is not synced yet
  absl::Status lost_;                     // of the first Sync, or writing again, that failed
};

}  // namespace flotilla::router
