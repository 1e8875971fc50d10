// What the code of files and batches asks of the operating system in more than one place. Any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace flotilla::router {

// UNAVAILABLE "what path: why", with the present errno.
absl::Status ErrnoError(std::string_view what, const std::string& path);

// Whether it is a file, and no pipe or device.
bool IsRegular(int fd);

// Fills `text` with the bytes from `at` on. False: there are fewer, or errno says why not.
bool ReadAt(int fd, std::uint64_t at, std::string& text);

// WriteToFile (common/rt/write_to_file.h) from `at` on, unless the file is open with O_APPEND.
bool WriteAt(int fd, std::uint64_t at, std::string_view text);

}  // namespace flotilla::router
