// Clock: the only source of time for shells; cores get time as a value.
#pragma once

#include <chrono>
#include <cstdint>

namespace flotilla {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic nanoseconds; the origin is arbitrary but fixed for the process.
  virtual std::int64_t NowNs() const = 0;
};

class SteadyClock final : public Clock {
 public:
  std::int64_t NowNs() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace flotilla
