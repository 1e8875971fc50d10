// A clock that stands still until a test moves it.
#pragma once

#include <cstdint>

#include "common/rt/clock.h"

namespace flotilla::testing {

// A clock that tests move by hand. One thread writes, any may read a value that
// the test has synchronised otherwise.
class ManualClock final : public Clock {
 public:
  std::int64_t NowNs() const override { return now_ns_; }
  void AdvanceNs(std::int64_t ns) { now_ns_ += ns; }

 private:
  std::int64_t now_ns_ = 0;
};

}  // namespace flotilla::testing
