// LogTail: hands on, line by line, what another process prints to a file.
//
// LogTail empties the file once all of its lines were taken and it is large (the writer
// appends). So the file grows without bound only if nobody takes its lines. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/rt/unique_fd.h"

namespace flotilla::worker {

class LogTail {
 public:
  // `name`: the process that prints the lines. The file need not exist yet.
  LogTail(std::string name, std::string path) : name_(std::move(name)), path_(std::move(path)) {}

  const std::string& name() const { return name_; }
  // Returns the complete lines since the last call, from at most 64 KiB of the file. With
  // `at_end` it also returns a last line that has no newline.
  std::vector<std::string> TakeLines(bool at_end);

 private:
  std::string name_, path_;
  UniqueFd file_;
  std::int64_t offset_ = 0;
  std::string partial_;
};

}  // namespace flotilla::worker
