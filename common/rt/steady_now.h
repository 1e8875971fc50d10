// SteadyNow: the time for limits and pauses. Only differences of it mean something. No change of
// the system's wall clock moves it.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace flotilla {

inline absl::Time SteadyNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace flotilla
