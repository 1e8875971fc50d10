#include "cli/top.h"

#include <CLI/CLI.hpp>
#include <cstddef>
#include <cstdio>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/fetch_pages.h"
#include "cli/terminal.h"
#include "cli/top_view.h"
#include "common/rt/clock.h"

namespace flotilla::cli {
namespace {

constexpr std::size_t kMaxProcesses = 256;
constexpr absl::Duration kTimeout = absl::Seconds(2);
// A picture begins at the top of a cleared screen. Lines that are still too long (because of
// wide characters) do not wrap; the terminal cuts them.
constexpr char kBeginPicture[] = "\x1b[H\x1b[2J\x1b[?7l";
constexpr char kEndPicture[] = "\x1b[?7h";

constexpr char kTopExamples[] = R"(
Examples:
  flotilla top --metrics 127.0.0.1:8080 127.0.0.1:9101 127.0.0.1:9102
  scripts/fleet top

The key q ends flotilla top.

flotilla router and flotilla serve have their metrics on the HTTP port. The other roles have them
on --metrics-port.
Rates and latencies (TTFT: time to first token, ITL: inter-token latency) cover the time since
the last table.)";

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

// Prints the tables. False: nobody reads standard output any more.
bool Show(const TopView& view, const Terminal& terminal, bool picture) {
  if (picture) std::fputs(kBeginPicture, stdout);
  std::fputs(TopText(view, terminal.columns()).c_str(), stdout);
  std::fputs(picture ? kEndPicture : "\n", stdout);
  return std::fflush(stdout) == 0;
}

}  // namespace

void AddTopFlags(CLI::App& app, TopFlags* flags) {
  app.add_option("--metrics", flags->metrics,
                 "The addresses where the processes of the fleet serve /metrics.")
      ->type_name("HOST:PORT")
      ->required()
      ->expected(1, kMaxProcesses);
  app.add_option("--interval", flags->interval_s,
                 "The seconds between two tables. [0.1..3600, default 2]")
      ->type_name("seconds")
      ->check(CLI::Range(0.1, 3600.0).description(""));
  app.add_flag("--once", flags->once,
               "One table is printed after one interval, and the command ends.");
  app.footer(kTopExamples);
}

absl::Status RunTop(const TopFlags& flags) {
  Terminal terminal;
  const SteadyClock clock;
  const bool picture = !flags.once && terminal.shows();
  std::vector<Look> now = LookAt(flags.metrics, clock);
  TopView view = MakeTopView({}, now);
  if (!flags.once) Show(view, terminal, picture);
  absl::Time next = absl::Now() + absl::Seconds(flags.interval_s);
  while (true) {
    const Terminal::Event event = terminal.Wait(next);
    if (event == Terminal::Event::kQuit) return absl::OkStatus();
    if (event == Terminal::Event::kTimeout) {
      const std::vector<Look> before = std::exchange(now, LookAt(flags.metrics, clock));
      view = MakeTopView(before, now);
      next = absl::Now() + absl::Seconds(flags.interval_s);
    } else if (!picture) {
      continue;  // the next table has the new width
    }
    if (!Show(view, terminal, picture)) return absl::OkStatus();
    if (!flags.once) continue;
    if (view.missing.size() < now.size()) return absl::OkStatus();
    return absl::UnavailableError("no process answered");
  }
}

}  // namespace flotilla::cli
