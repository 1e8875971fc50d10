#include "router/batch/batch_report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_format.h"

namespace flotilla::router {
namespace {

double PerSecond(std::uint64_t before, std::uint64_t now, double seconds) {
  return seconds > 0 ? static_cast<double>(now - before) / seconds : 0;
}

// "29 s", "4 min 10 s" or "3 h 20 min".
std::string TimeText(double seconds) {
  const auto s = static_cast<std::int64_t>(std::min(std::ceil(seconds), 1e9));
  if (s < 120) return absl::StrFormat("%d s", s);
  if (s < 7200) return absl::StrFormat("%d min %d s", s / 60, s % 60);
  return absl::StrFormat("%d h %d min", s / 3600, s / 60 % 60);
}

}  // namespace

std::string ProgressText(const BatchCounts& before, const BatchCounts& now, double seconds) {
  const double rate = PerSecond(before.answered, now.answered, seconds);
  const double percent =
      now.lines == 0 ? 100
                     : 100 * static_cast<double>(now.answered) / static_cast<double>(now.lines);
  std::string text =
      absl::StrFormat("%d/%d answered (%.0f %%), %.3g requests/s, %.3g tokens/s", now.answered,
                      now.lines, std::floor(percent), rate,
                      PerSecond(before.completion_tokens, now.completion_tokens, seconds));
  if (rate > 0) {
    text += absl::StrFormat(", %s left",
                            TimeText(static_cast<double>(now.lines - now.answered) / rate));
  }
  return text;
}

std::string SummaryText(const BatchCounts& before, const BatchCounts& now, double seconds) {
  std::string text = absl::StrFormat("%d of %d requests are answered", now.answered, now.lines);
  const char* separator = ": ";
  for (const auto& [status, count] : now.by_status) {
    text += absl::StrFormat("%s%d with %d", separator, count, status);
    separator = ", ";
  }
  text += absl::StrFormat("; %d prompt tokens, %d completion tokens\n", now.prompt_tokens,
                          now.completion_tokens);
  text += absl::StrFormat(
      "this run: %d requests in %.1f s, %.3g requests/s, %.3g completion tokens/s\n",
      now.answered - before.answered, seconds, PerSecond(before.answered, now.answered, seconds),
      PerSecond(before.completion_tokens, now.completion_tokens, seconds));
  return text;
}

bool AllSucceeded(const BatchCounts& counts) {
  const auto ok = counts.by_status.find(200);
  const std::uint64_t succeeded = ok == counts.by_status.end() ? 0 : ok->second;
  return succeeded == counts.lines;
}

}  // namespace flotilla::router
