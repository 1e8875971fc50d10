// Process metrics: what the kernel knows about this process, under the names that
// Prometheus' own client libraries use (process_*), so that stock dashboards work.
//
// main adds them to the process's registry, and they are read from /proc at each scrape. The
// version of the program and the dropped lines of the process's log are here too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/obs/log.h"
#include "common/obs/metrics.h"

namespace flotilla {

struct ProcessStat {
  std::int64_t cpu_ticks = 0;  // user and system time, in clock ticks
  std::int64_t threads = 0;
  std::int64_t start_ticks = 0;  // since boot
  std::int64_t rss_pages = 0;

  bool operator==(const ProcessStat&) const = default;
};

// Reads the text of /proc/PID/stat. INVALID_ARGUMENT: it is not one.
absl::StatusOr<ProcessStat> ParseProcessStat(std::string_view text);

// Adds process_start_time_seconds, process_cpu_seconds_total,
// process_resident_memory_bytes, process_open_fds, process_max_fds and process_threads.
// A value that cannot be read stays as it was.
void AddProcessMetrics(Metrics& metrics);

// Adds flotilla_build_info.
void AddBuildInfo(Metrics& metrics, const std::string& version, Metrics::Labels labels = {});

// Adds flotilla_log_dropped_lines_total. `log` outlives the last Render.
void WatchLog(Metrics& metrics, const Logger* log);

}  // namespace flotilla
