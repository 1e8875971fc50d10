// ProgressLine: shows on standard error how far a long piece of work is, how fast it
// goes and when it will be done. It is silent for the first second. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "common/rt/clock.h"

namespace flotilla::cli {

class ProgressLine {
 public:
  // `clock` outlives it. `pieces` is what the work consists of.
  ProgressLine(const Clock* clock, std::string what, std::string pieces = "requests");
  // Ends the line if anything was printed.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // `done` of `total` pieces are done. Prints four times a second on a terminal,
  // every ten seconds elsewhere.
  void Update(std::uint64_t done, std::uint64_t total);

 private:
  const Clock* const clock_;
  const std::string what_, pieces_;
  const bool terminal_;
  const std::int64_t start_ns_;
  std::int64_t next_ns_;
  bool printed_ = false;
};

}  // namespace flotilla::cli
