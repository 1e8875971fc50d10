#include "cli/top.h"

#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <utility>

#include "absl/time/time.h"
#include "cli/fetch_pages.h"
#include "cli/signals.h"
#include "cli/top_view.h"
#include "common/rt/clock.h"

namespace flotilla {
namespace {

constexpr std::size_t kMaxProcesses = 256;
constexpr absl::Duration kTimeout = absl::Seconds(2);
constexpr char kClearScreen[] = "\x1b[H\x1b[2J";

constexpr char kExamples[] = R"(
Examples:
  flotilla top --metrics 127.0.0.1:8080 127.0.0.1:9101 127.0.0.1:9102
  scripts/fleet top

Addresses are those of /metrics: a router's HTTP port, --metrics-port of others. Rates and
latencies (TTFT: time to first token, ITL: inter-token latency) are those between two looks.)";

std::vector<Look> LookAt(const std::vector<std::string>& addresses, const Clock& clock) {
  std::vector<absl::StatusOr<std::string>> pages = FetchPages(addresses, "/metrics", kTimeout);
  const std::int64_t now_ns = clock.NowNs();
  std::vector<Look> looks;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    looks.push_back({.address = addresses[i],
                     .page = pages[i].ok() ? MetricsPage::Parse(*pages[i], now_ns)
                                           : absl::StatusOr<MetricsPage>(pages[i].status())});
  }
  return looks;
}

// Whether anybody still reads it.
bool Show(const TopView& view, bool clear) {
  if (clear) std::fputs(kClearScreen, stdout);
  std::fputs(TopText(view).c_str(), stdout);
  if (!clear) std::fputc('\n', stdout);
  return std::fflush(stdout) == 0;
}

}  // namespace

void AddTopFlags(CLI::App& app, TopFlags* flags) {
  app.add_option("--metrics", flags->metrics, "where the processes of the fleet show /metrics")
      ->type_name("HOST:PORT")
      ->required()
      ->expected(1, kMaxProcesses);
  app.add_option("--interval", flags->interval_s,
                 "seconds between two looks [0.1..3600, default 2]")
      ->type_name("seconds")
      ->check(CLI::Range(0.1, 3600.0).description(""));
  app.add_flag("--once", flags->once, "one table, after one interval");
  app.footer(kExamples);
}

absl::Status RunTop(const TopFlags& flags) {
  Signals signals;
  const SteadyClock clock;
  const bool clear = !flags.once && isatty(STDOUT_FILENO) != 0;
  std::vector<Look> now = LookAt(flags.metrics, clock);
  if (!flags.once) Show(MakeTopView({}, now), clear);
  while (signals.Wait(absl::Seconds(flags.interval_s)) != Signals::Event::kStop) {
    const std::vector<Look> before = std::exchange(now, LookAt(flags.metrics, clock));
    const TopView view = MakeTopView(before, now);
    if (!Show(view, clear)) break;
    if (!flags.once) continue;
    if (view.missing.size() < now.size()) break;
    return absl::UnavailableError("no process answered");
  }
  return absl::OkStatus();
}

}  // namespace flotilla
