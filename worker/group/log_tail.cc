#include "worker/group/log_tail.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <utility>

namespace flotilla::worker {
namespace {

constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::int64_t kLargeBytes = 1 << 20;
// A longer line is handed on in pieces.
constexpr std::size_t kMaxLineBytes = 4 << 10;

}  // namespace

std::vector<std::string> LogTail::TakeLines(bool at_end) {
  std::vector<std::string> lines;
  if (!file_.ok()) file_.Reset(open(path_.c_str(), O_RDWR | O_CLOEXEC));
  if (!file_.ok()) return lines;
  static thread_local std::array<char, kReadBytes> read;
  const ssize_t got = pread(file_.get(), read.data(), read.size(), offset_);
  for (ssize_t i = 0; i < got; ++i) {
    if (read[i] != '\n') partial_.push_back(read[i]);
    if (read[i] == '\n' || partial_.size() == kMaxLineBytes) {
      if (!partial_.empty()) lines.push_back(std::exchange(partial_, {}));
    }
  }
  if (got > 0) offset_ += got;
  if (got == 0 && offset_ > kLargeBytes && ftruncate(file_.get(), 0) == 0) offset_ = 0;
  if (at_end && !partial_.empty()) lines.push_back(std::exchange(partial_, {}));
  return lines;
}

}  // namespace flotilla::worker
