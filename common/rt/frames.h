// Frames: messages on a stream socket, each after its size in bytes (32 bits,
// little-endian).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace flotilla {

// The largest message between an agent and its ranks.
inline constexpr std::size_t kMaxFrameBytes = 64 << 20;

// A message with its size before it. `message` is at most kMaxFrameBytes long.
std::string Frame(absl::string_view message);

// Assembles messages from the bytes of a socket. It holds one message at most, and the
// bytes that one read returned after it.
class FrameReader {
 public:
  // Reads once from `fd`. False: a socket that does not block has no data now.
  // UNAVAILABLE: the other side has closed it; INVALID_ARGUMENT: a size above
  // kMaxFrameBytes.
  absl::StatusOr<bool> ReadFrom(int fd);

  // The next complete message, if there is one.
  std::optional<std::string> Next();

  // Bytes that were read and are no message yet.
  std::size_t pending() const { return filled_ - taken_; }

 private:
  std::string buffer_;  // filled_ bytes of it are read
  std::size_t filled_ = 0;
  std::size_t taken_ = 0;  // bytes of it that Next has given
};

// Writes all of it to a socket that blocks. UNAVAILABLE: the other side is gone.
absl::Status WriteAll(int fd, absl::string_view bytes);

}  // namespace flotilla
