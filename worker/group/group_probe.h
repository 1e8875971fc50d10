// GroupProbe: the state of the members of a worker group, for its metrics.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/core/watch.h"

namespace flotilla {

// One thread writes. Any thread may read, as a scrape does.
struct GroupProbe {
  struct Rank {
    std::atomic<bool> up{false};                // it is connected and the group has not been lost
    std::atomic<std::int64_t> heartbeat_ns{0};  // the last one seen; 0: none yet
    std::atomic<std::int64_t> cpu_ns{0};        // of all its processes so far
    std::atomic<std::int64_t> resident_bytes{0};
  };

  explicit GroupProbe(int count) : ranks(static_cast<std::size_t>(count)) {}

  std::vector<Rank> ranks;
  std::array<std::atomic<std::uint64_t>, kFaults> restarts{};  // [Fault]
};

}  // namespace flotilla
