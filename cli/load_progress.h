// LoadProgressLine: shows on standard error how far a load test is. One thread.
#pragma once

#include <string>

#include "loadtest/load_runner.h"

namespace flotilla::cli {

class LoadProgressLine {
 public:
  // `what` begins each line. `duration_s` is when the last request is sent; 0: it is not known.
  LoadProgressLine(std::string what, double duration_s);
  // Ends the line if anything was printed.
  ~LoadProgressLine();
  LoadProgressLine(const LoadProgressLine&) = delete;
  LoadProgressLine& operator=(const LoadProgressLine&) = delete;

  // Prints at each call on a terminal, every five seconds elsewhere.
  void Update(const loadtest::LoadProgress& progress);

 private:
  const std::string what_;
  const double duration_s_;
  const bool terminal_;
  bool printed_ = false;
  double next_s_ = 5;
  // At the last call: the time, the events with text.
  double last_s_ = 0;
  std::uint64_t last_events_ = 0;
};

// The text after `what`: rates, what is under way, the time left. `tokens_per_s` is the rate since
// the last text.
std::string LoadProgressText(const loadtest::LoadProgress& progress, double tokens_per_s,
                             double duration_s);

}  // namespace flotilla::cli
