#include "common/obs/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"

namespace flotilla {
namespace {

// Fields of /proc/PID/stat behind the name, which ends at the last ")" and may hold
// anything itself; proc(5) counts from 1 and has the state, the first of these, as 3.
constexpr std::size_t kUserTime = 14 - 3, kSystemTime = 15 - 3, kThreads = 20 - 3,
                      kStartTime = 22 - 3, kRssPages = 24 - 3;

std::string ReadFile(const char* path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The time at which the machine booted, in seconds since 1970; 0: not known.
double BootTime() {
  std::ifstream in("/proc/stat");
  double seconds = 0;
  for (std::string line; std::getline(in, line);) {
    if (std::istringstream words(line); words >> line >> seconds && line == "btime") return seconds;
  }
  return 0;
}

std::int64_t CountOpenFiles() {
  std::error_code error;
  std::int64_t count = 0;
  for (std::filesystem::directory_iterator i("/proc/self/fd", error), end; !error && i != end;
       i.increment(error)) {
    ++count;
  }
  return count;
}

}  // namespace

absl::StatusOr<ProcessStat> ParseProcessStat(std::string_view text) {
  const std::size_t name_end = text.rfind(") ");
  if (name_end == std::string_view::npos) {
    return absl::InvalidArgumentError("no process name in /proc/PID/stat");
  }
  std::istringstream in{std::string(text.substr(name_end + 2))};
  const std::vector<std::string> fields{std::istream_iterator<std::string>(in), {}};
  constexpr std::array kWanted = {kUserTime, kSystemTime, kThreads, kStartTime, kRssPages};
  std::array<std::int64_t, kWanted.size()> values{};
  for (std::size_t i = 0; i < kWanted.size(); ++i) {
    if (kWanted[i] >= fields.size() || !absl::SimpleAtoi(fields[kWanted[i]], &values[i])) {
      return absl::InvalidArgumentError("a number is missing in /proc/PID/stat");
    }
  }
  return ProcessStat{.cpu_ticks = values[0] + values[1],
                     .threads = values[2],
                     .start_ticks = values[3],
                     .rss_pages = values[4]};
}

void AddProcessMetrics(Metrics& metrics) {
  Gauge& start = metrics.AddGauge("process_start_time_seconds", "Start, in seconds since 1970.");
  Counter& cpu = metrics.AddCounter("process_cpu_seconds_total", "User and system CPU time.");
  Gauge& memory = metrics.AddGauge("process_resident_memory_bytes", "Resident memory.");
  Gauge& threads = metrics.AddGauge("process_threads", "Threads.");
  Gauge& files = metrics.AddGauge("process_open_fds", "Open file descriptors.");
  Gauge& max_files = metrics.AddGauge("process_max_fds", "Limit of open file descriptors.");
  const double boot = BootTime();
  const auto tick = static_cast<double>(sysconf(_SC_CLK_TCK));
  const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
  metrics.OnRender([=, &start, &cpu, &memory, &threads, &files, &max_files] {
    if (const absl::StatusOr<ProcessStat> stat = ParseProcessStat(ReadFile("/proc/self/stat"));
        stat.ok()) {
      start.Set(boot + static_cast<double>(stat->start_ticks) / tick);
      RaiseTo(cpu, static_cast<double>(stat->cpu_ticks) / tick);
      memory.Set(static_cast<double>(stat->rss_pages) * page);
      threads.Set(static_cast<double>(stat->threads));
    }
    if (const std::int64_t open = CountOpenFiles(); open > 0) {
      files.Set(static_cast<double>(open));
    }
    if (rlimit limit{}; getrlimit(RLIMIT_NOFILE, &limit) == 0) {
      max_files.Set(static_cast<double>(limit.rlim_cur));
    }
  });
}

void AddBuildInfo(Metrics& metrics, const std::string& version, Metrics::Labels labels) {
  labels["version"] = version;
  metrics.AddGauge("flotilla_build_info", "1.", labels).Set(1);
}

void WatchLog(Metrics& metrics, const Logger* log) {
  Counter& dropped = metrics.AddCounter("flotilla_log_dropped_lines_total",
                                        "Lines of the log that found no room.");
  metrics.OnRender(
      [log, &dropped] { RaiseTo(dropped, static_cast<double>(log->dropped_lines())); });
}

}  // namespace flotilla
