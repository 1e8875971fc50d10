// Writing to a file. For sockets there is WriteAll in common/rt/frames.h.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace flotilla {

// Writes all of `bytes` to a file or a pipe that blocks, also if the system takes them in parts.
// False: errno says why not, and a part may be written. Any thread.
bool WriteToFile(int fd, std::span<const std::byte> bytes);

inline bool WriteToFile(int fd, std::string_view text) {
  return WriteToFile(fd, std::as_bytes(std::span(text)));
}

}  // namespace flotilla
