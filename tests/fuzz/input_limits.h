// What one input of a fuzzer may cost.
#pragma once

#include <cstddef>
#include <ctime>

namespace flotilla::testing {

// While the object lives, memory above 4 times the input and 64 MiB ends the process with a report
// of the allocation that was too much, and so does a second of CPU time when the object ends. One
// object lives at a time, on the thread that uses the input.
class InputLimits {
 public:
  explicit InputLimits(std::size_t input_bytes);
  ~InputLimits();
  InputLimits(const InputLimits&) = delete;
  InputLimits& operator=(const InputLimits&) = delete;

 private:
  const std::clock_t start_;
};

}  // namespace flotilla::testing
