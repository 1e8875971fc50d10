#include "loadtest/core/load_recorder.h"

#include <algorithm>

namespace flotilla::loadtest {
namespace {

constexpr std::size_t kMostIntervals = 240;
constexpr std::size_t kMostReasons = 32;
constexpr std::size_t kCurvePoints = 200;

double Ms(std::int64_t ns) { return 1e-6 * static_cast<double>(ns); }

Latency LatencyOf(const Histogram& times) {
  Latency latency{.count = static_cast<double>(times.count()),
                  .mean = 1e-6 * times.mean(),
                  .p50 = 1e-6 * times.Percentile(50),
                  .p90 = 1e-6 * times.Percentile(90),
                  .p95 = 1e-6 * times.Percentile(95),
                  .p99 = 1e-6 * times.Percentile(99),
                  .p999 = 1e-6 * times.Percentile(99.9),
                  .max = Ms(times.max()),
                  .curve = times.Curve(kCurvePoints)};
  for (auto& [value, share] : latency.curve) value *= 1e-6;
  return latency;
}

}  // namespace

LoadRecorder::Interval& LoadRecorder::IntervalAt(std::int64_t now_ns) {
  auto index = static_cast<std::size_t>(now_ns / width_ns_);
  while (index >= kMostIntervals) {
    for (std::size_t i = 0; i < intervals_.size(); ++i) {
      const Interval from = intervals_[i];
      if (i % 2 == 0) intervals_[i / 2] = {};
      Interval& to = intervals_[i / 2];
      to.tokens += from.tokens;
      to.in_flight_ns += from.in_flight_ns;
      to.finished += from.finished;
      to.failed += from.failed;
    }
    intervals_.resize((intervals_.size() + 1) / 2);
    width_ns_ *= 2;
    index = static_cast<std::size_t>(now_ns / width_ns_);
  }
  if (index >= intervals_.size()) intervals_.resize(index + 1);
  return intervals_[index];
}

void LoadRecorder::Advance(std::int64_t now_ns) {
  const auto running = static_cast<double>(in_flight());
  while (last_ns_ < now_ns) {
    // Intervals may double their width in this call.
    Interval& interval = IntervalAt(last_ns_);
    const std::int64_t end = std::min(now_ns, (last_ns_ / width_ns_ + 1) * width_ns_);
    interval.in_flight_ns += running * static_cast<double>(end - last_ns_);
    last_ns_ = end;
  }
}

RequestMeter LoadRecorder::OnSent(std::int64_t due_ns, std::int64_t now_ns) {
  Advance(now_ns);
  ++sent_;
  peak_ = std::max(peak_, in_flight());
  lag_.Add(now_ns - due_ns);
  return {.due_ns = due_ns};
}

void LoadRecorder::OnToken(RequestMeter& meter, std::int64_t now_ns) {
  Advance(now_ns);
  IntervalAt(now_ns).tokens += 1;
  ++events_;
  if (meter.events++ == 0) {
    meter.first_ns = now_ns;
    ttft_.Add(now_ns - meter.due_ns);
  } else {
    itl_.Add(now_ns - meter.last_ns);
  }
  meter.last_ns = now_ns;
}

bool LoadRecorder::Good(double ttft_ms, double tpot_ms, double e2e_ms) const {
  const auto keeps = [](double value, double bound) { return bound <= 0 || value <= bound; };
  return keeps(ttft_ms, level_.ttft_ms) && keeps(tpot_ms, level_.itl_ms) &&
         keeps(e2e_ms, level_.e2e_ms);
}

void LoadRecorder::OnFinished(const RequestMeter& meter, const RequestUsage& usage,
                              std::int64_t now_ns) {
  Advance(now_ns);
  IntervalAt(now_ns).finished += 1;
  ++finished_;
  const std::uint64_t tokens = usage.completion_tokens > 0 ? usage.completion_tokens : meter.events;
  output_tokens_ += tokens;
  prompt_tokens_ += usage.prompt_tokens;
  cached_tokens_ += usage.cached_tokens;
  const std::int64_t e2e = now_ns - meter.due_ns;
  e2e_.Add(e2e);
  std::int64_t tpot = 0;
  if (tokens > 1 && meter.events > 1) {
    tpot = (meter.last_ns - meter.first_ns) / static_cast<std::int64_t>(tokens - 1);
    tpot_.Add(tpot);
  }
  const std::int64_t ttft = meter.events > 0 ? meter.first_ns - meter.due_ns : e2e;
  if (Good(Ms(ttft), Ms(tpot), Ms(e2e))) ++good_;
}

void LoadRecorder::OnFailed(absl::string_view reason, std::int64_t now_ns) {
  Advance(now_ns);
  IntervalAt(now_ns).failed += 1;
  ++failed_;
  const std::string name(reason);
  const bool known = failures_.count(name) > 0 || failures_.size() < kMostReasons;
  failures_[known ? name : "other"] += 1;
}

LoadResult LoadRecorder::Result() const {
  LoadResult result;
  result.seconds = 1e-9 * static_cast<double>(last_ns_);
  const auto per_second = [&](double count) {
    return result.seconds > 0 ? count / result.seconds : 0;
  };
  result.requests = static_cast<double>(sent_);
  result.finished = static_cast<double>(finished_);
  result.failed = static_cast<double>(failed_);
  result.requests_per_s = per_second(result.finished);
  result.output_tokens = static_cast<double>(output_tokens_);
  result.output_tokens_per_s = per_second(result.output_tokens);
  result.prompt_tokens = static_cast<double>(prompt_tokens_);
  result.prompt_tokens_per_s = per_second(result.prompt_tokens);
  result.cached_tokens = static_cast<double>(cached_tokens_);
  result.goodput_per_s = per_second(static_cast<double>(good_));
  result.good_share = sent_ > 0 ? static_cast<double>(good_) / result.requests : 0;
  result.peak_in_flight = static_cast<double>(peak_);
  result.ttft_ms = LatencyOf(ttft_);
  result.itl_ms = LatencyOf(itl_);
  result.tpot_ms = LatencyOf(tpot_);
  result.e2e_ms = LatencyOf(e2e_);
  result.send_lag_ms = LatencyOf(lag_);
  result.failures = failures_;
  for (std::size_t i = 0; i < intervals_.size(); ++i) {
    const std::int64_t start = static_cast<std::int64_t>(i) * width_ns_;
    // The last interval ends with the test.
    const auto width = static_cast<double>(std::min(width_ns_, last_ns_ - start));
    if (width <= 0) break;
    result.intervals.push_back({.start_s = 1e-9 * static_cast<double>(start),
                                .tokens_per_s = 1e9 * intervals_[i].tokens / width,
                                .in_flight = intervals_[i].in_flight_ns / width,
                                .finished_per_s = 1e9 * intervals_[i].finished / width,
                                .failed_per_s = 1e9 * intervals_[i].failed / width});
  }
  return result;
}

}  // namespace flotilla::loadtest
