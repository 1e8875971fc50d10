// LineReader: reads the lines of a file that need not fit into memory. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace flotilla::router {

struct TextLine {
  std::string_view text;     // without its end; valid until the reader's next call
  std::uint64_t number = 0;  // from 1 on
  std::uint64_t begin = 0;   // its offset in the file
  bool whole = true;         // false: the last line, which has no end
};

class LineReader {
 public:
  // `fd` is read from its offset on, is not owned, and outlives the reader.
  LineReader(int fd, std::size_t max_line_bytes) : fd_(fd), max_line_bytes_(max_line_bytes) {}

  // None: the file has ended. RESOURCE_EXHAUSTED: the line is longer than allowed. UNAVAILABLE: the
  // file cannot be read.
  absl::StatusOr<std::optional<TextLine>> Next();

 private:
  const int fd_;
  const std::size_t max_line_bytes_;
  std::string buffer_;
  std::size_t at_ = 0;        // where the next line begins in buffer_
  std::uint64_t offset_ = 0;  // of buffer_ in the file
  std::uint64_t number_ = 0;
};

}  // namespace flotilla::router
