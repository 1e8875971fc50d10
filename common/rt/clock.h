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

// A clock that tests move by hand. One thread writes, any may read a value that
// the test has synchronised otherwise.
class ManualClock final : public Clock {
 public:
  std::int64_t NowNs() const override { return now_ns_; }
  void AdvanceNs(std::int64_t ns) { now_ns_ += ns; }

 private:
  std::int64_t now_ns_ = 0;
};

}  // namespace flotilla
