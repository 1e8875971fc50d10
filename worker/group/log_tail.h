// LogTail: hands on what another process prints to a file, line by line.
//
// The file may grow without bound only if nobody takes its lines: once all were taken
// and it is large, it is emptied (the writer appends). One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/rt/unique_fd.h"

namespace flotilla {

class LogTail {
 public:
  // `name`: whose lines they are. The file may come into being later.
  LogTail(std::string name, std::string path) : name_(std::move(name)), path_(std::move(path)) {}

  const std::string& name() const { return name_; }
  // Complete lines since the last call, of at most 64 KiB of the file; `at_end`: also
  // the last one without its end.
  std::vector<std::string> TakeLines(bool at_end);

 private:
  std::string name_, path_;
  UniqueFd file_;
  std::int64_t offset_ = 0;
  std::string partial_;
};

}  // namespace flotilla
