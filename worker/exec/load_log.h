// LoadLog: when a worker group says in the log how far it is with loading, and what. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/rt/load_progress.h"
#include "worker/exec/metrics.h"

namespace flotilla::worker {

class LoadLog {
 public:
  static constexpr std::int64_t kPeriodNs = 5'000'000'000;

  // What a line says of the rank that is furthest behind.
  struct Line {
    std::size_t rank = 0;
    LoadPhase phase = LoadPhase::kOpen;
    std::uint64_t loaded_bytes = 0, load_bytes = 0;  // in this phase
    // Since the last line, and the time that is left at this rate; 0: not known, because the last
    // line was about another rank or phase, or nothing was loaded since.
    std::uint64_t bytes_per_second = 0, seconds_left = 0;

    bool operator==(const Line&) const = default;
  };

  // None: no rank loads, or the last line (or the first call) was less than kPeriodNs ago.
  std::optional<Line> Next(std::int64_t now_ns, const GroupProbe& group);

 private:
  std::optional<std::int64_t> last_ns_;
  std::optional<Line> last_;
};

}  // namespace flotilla::worker
