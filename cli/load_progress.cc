#include "cli/load_progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace flotilla::cli {

std::string LoadProgressText(const loadtest::LoadProgress& progress, double tokens_per_s,
                             double duration_s) {
  std::string text = absl::StrFormat("%.0f s, ", progress.elapsed_s);
  if (duration_s > 0) {
    absl::StrAppend(&text, progress.ended, " requests");
  } else {
    absl::StrAppend(&text, progress.ended, " of ", progress.planned, " requests");
  }
  absl::StrAppendFormat(&text, ", %d in flight, %.0f tokens/s", progress.in_flight, tokens_per_s);
  if (progress.failed > 0) absl::StrAppend(&text, ", ", progress.failed, " failed");
  double left_s = -1;
  if (duration_s > 0) {
    left_s = std::max(0.0, duration_s - progress.elapsed_s);
  } else if (progress.ended > 0) {
    left_s = progress.elapsed_s / static_cast<double>(progress.ended) *
             static_cast<double>(progress.planned - progress.ended);
  }
  if (left_s >= 0) absl::StrAppendFormat(&text, ", %.0f s left", left_s);
  return text;
}

LoadProgressLine::LoadProgressLine(std::string what, double duration_s)
    : what_(std::move(what)), duration_s_(duration_s), terminal_(isatty(STDERR_FILENO) == 1) {}

LoadProgressLine::~LoadProgressLine() {
  if (printed_ && terminal_) absl::FPrintF(stderr, "\n");
}

void LoadProgressLine::Update(const loadtest::LoadProgress& progress) {
  if (!terminal_ && progress.elapsed_s < next_s_) return;
  next_s_ = progress.elapsed_s + 5;
  const double seconds = std::max(1e-3, progress.elapsed_s - last_s_);
  const double rate = static_cast<double>(progress.events - last_events_) / seconds;
  last_s_ = progress.elapsed_s;
  last_events_ = progress.events;
  printed_ = true;
  absl::FPrintF(stderr, "%s%s: %s%s", terminal_ ? "\r" : "", what_,
                LoadProgressText(progress, rate, duration_s_), terminal_ ? "\x1b[K" : "\n");
  std::fflush(stderr);
}

}  // namespace flotilla::cli
