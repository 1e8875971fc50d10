#include "cli/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"

namespace flotilla::cli {
namespace {
constexpr std::int64_t kProgressSecond = 1'000'000'000;
}

ProgressLine::ProgressLine(const Clock* clock, std::string what, std::string pieces)
    : clock_(clock),
      what_(std::move(what)),
      pieces_(std::move(pieces)),
      terminal_(isatty(STDERR_FILENO) == 1),
      start_ns_(clock->NowNs()),
      next_ns_(start_ns_ + kProgressSecond) {}

ProgressLine::~ProgressLine() {
  if (printed_ && terminal_) absl::FPrintF(stderr, "\n");
}

void ProgressLine::Update(std::uint64_t done, std::uint64_t total) {
  const std::int64_t now = clock_->NowNs();
  if (now < next_ns_ || done == 0) return;
  next_ns_ = now + (terminal_ ? kProgressSecond / 4 : 10 * kProgressSecond);
  printed_ = true;
  const double seconds = 1e-9 * static_cast<double>(now - start_ns_);
  const double rate = static_cast<double>(done) / seconds;
  absl::FPrintF(stderr, "%s%s: %.0f %%, %.3g %s/s, %.0f s left%s", terminal_ ? "\r" : "", what_,
                100.0 * static_cast<double>(done) / static_cast<double>(total), rate, pieces_,
                static_cast<double>(total - done) / rate, terminal_ ? "   " : "\n");
  std::fflush(stderr);
}

}  // namespace flotilla::cli
