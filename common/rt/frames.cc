#include "common/rt/frames.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace flotilla {
namespace {

constexpr std::size_t kSizeBytes = 4;
constexpr std::size_t kReadBytes = 64 << 10;

// The size that stands at the beginning of `bytes`.
std::size_t SizeAt(const char* bytes) {
  std::uint32_t size = 0;
  for (std::size_t i = 0; i < kSizeBytes; ++i) {
    size |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return size;
}

}  // namespace

std::string Frame(absl::string_view message) {
  std::string frame;
  frame.reserve(kSizeBytes + message.size());
  for (std::size_t i = 0; i < kSizeBytes; ++i) {
    frame.push_back(static_cast<char>(message.size() >> (8 * i)));
  }
  return frame.append(message.data(), message.size());
}

absl::StatusOr<bool> FrameReader::ReadFrom(int fd) {
  if (taken_ > 0) {  // not at every read of a long message
    std::memmove(buffer_.data(), buffer_.data() + taken_, filled_ - taken_);
    filled_ -= std::exchange(taken_, 0);
  }
  if (buffer_.size() < filled_ + kReadBytes) buffer_.resize(filled_ + kReadBytes);
  ssize_t got = 0;
  do {
    got = recv(fd, buffer_.data() + filled_, kReadBytes, 0);
  } while (got < 0 && errno == EINTR);
  filled_ += static_cast<std::size_t>(got > 0 ? got : 0);
  if (got == 0) return absl::UnavailableError("the socket was closed");
  if (got < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    return absl::UnavailableError(absl::StrCat("the socket: ", std::strerror(errno)));
  }
  if (filled_ >= kSizeBytes && SizeAt(buffer_.data()) > kMaxFrameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", SizeAt(buffer_.data()),
                                                   " bytes; ", kMaxFrameBytes, " are allowed"));
  }
  return true;
}

std::optional<std::string> FrameReader::Next() {
  const std::size_t there = filled_ - taken_;
  if (there < kSizeBytes) return std::nullopt;
  const std::size_t size = SizeAt(buffer_.data() + taken_);
  if (there - kSizeBytes < size) return std::nullopt;
  std::string message = buffer_.substr(taken_ + kSizeBytes, size);
  taken_ += kSizeBytes + size;
  return message;
}

absl::Status WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return absl::UnavailableError(absl::StrCat("the socket: ", std::strerror(errno)));
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return absl::OkStatus();
}

}  // namespace flotilla
