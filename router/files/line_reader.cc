#include "router/files/line_reader.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace flotilla::router {
namespace {
constexpr std::size_t kReadBytes = 256 << 10;
}

absl::StatusOr<std::optional<TextLine>> LineReader::Next() {
  std::size_t searched = at_;
  while (true) {
    const std::size_t end = buffer_.find('\n', searched);
    const std::size_t bytes = (end == std::string::npos ? buffer_.size() : end) - at_;
    if (bytes > max_line_bytes_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("line ", number_ + 1, " is longer than ", max_line_bytes_, " bytes"));
    }
    if (end != std::string::npos) {
      const TextLine line{{buffer_.data() + at_, bytes}, ++number_, offset_ + at_};
      at_ = end + 1;
      return line;
    }
    buffer_.erase(0, at_);
    offset_ += at_;
    at_ = 0;
    searched = buffer_.size();
    buffer_.resize(searched + kReadBytes);
    ssize_t got = 0;
    do {
      got = read(fd_, buffer_.data() + searched, kReadBytes);
    } while (got < 0 && errno == EINTR);
    buffer_.resize(searched + static_cast<std::size_t>(got < 0 ? 0 : got));
    if (got < 0) return absl::UnavailableError(std::strerror(errno));
    if (got > 0) continue;
    if (buffer_.empty()) return std::nullopt;
    at_ = buffer_.size();
    return TextLine{buffer_, ++number_, offset_, /*whole=*/false};
  }
}

}  // namespace flotilla::router
