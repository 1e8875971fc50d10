// LoadRecorder: the accounting of a load test, from the events of its requests to its figures.
//
// The test's one thread calls it with the time of each event, in nanoseconds from the start of the
// test. A request is due at a time that the plan (in open loop) or its user (in closed loop) gives,
// and all its latencies count from there, even if it was sent later. So a slow server or client
// cannot hide the wait of requests that it kept from being sent (coordinated omission). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "loadtest/core/histogram.h"
#include "loadtest/core/load_result.h"

namespace flotilla::loadtest {

// What a request must keep to count as good. 0: no bound.
struct ServiceLevel {
  double ttft_ms = 1000;
  double itl_ms = 100;  // mean gap between its tokens (TPOT)
  double e2e_ms = 0;
};

// One request under way. The recorder fills it; its user keeps it.
struct RequestMeter {
  std::int64_t due_ns = 0;
  std::int64_t first_ns = -1;  // first token; -1: none came
  std::int64_t last_ns = -1;
  std::uint64_t events = 0;  // with text
};

// The server's counts of a finished request.
struct RequestUsage {
  std::uint64_t completion_tokens = 0;  // 0: the events with text count in their place
  std::uint64_t prompt_tokens = 0;
  std::uint64_t cached_tokens = 0;
};

class LoadRecorder {
 public:
  explicit LoadRecorder(const ServiceLevel& level) : level_(level) {}

  RequestMeter OnSent(std::int64_t due_ns, std::int64_t now_ns);
  // An event with text arrived.
  void OnToken(RequestMeter& meter, std::int64_t now_ns);
  void OnFinished(const RequestMeter& meter, const RequestUsage& usage, std::int64_t now_ns);
  // `reason` may hold what a server said; beyond 32 reasons they count as "other".
  void OnFailed(absl::string_view reason, std::int64_t now_ns);

  // A gap between tokens that is known without the times of both.
  void AddGap(std::int64_t gap_ns) { itl_.Add(gap_ns); }

  std::uint64_t sent() const { return sent_; }
  std::uint64_t ended() const { return finished_ + failed_; }
  std::uint64_t failed() const { return failed_; }
  std::uint64_t in_flight() const { return sent_ - ended(); }
  std::uint64_t events() const { return events_; }

  // The figures until now. Label, settings, offered rate and processor time are the caller's.
  LoadResult Result() const;

 private:
  // Sums of the times in one interval.
  struct Interval {
    double tokens = 0, in_flight_ns = 0, finished = 0, failed = 0;
  };

  Interval& IntervalAt(std::int64_t now_ns);
  // Counts the requests in flight until now.
  void Advance(std::int64_t now_ns);
  bool Good(double ttft_ms, double tpot_ms, double e2e_ms) const;

  const ServiceLevel level_;
  Histogram ttft_, itl_, tpot_, e2e_, lag_;
  std::uint64_t sent_ = 0, finished_ = 0, failed_ = 0, good_ = 0, peak_ = 0, events_ = 0;
  std::uint64_t output_tokens_ = 0, prompt_tokens_ = 0, cached_tokens_ = 0;
  std::int64_t last_ns_ = 0;  // the last event
  std::map<std::string, double> failures_;
  std::int64_t width_ns_ = 250'000'000;  // of an interval; doubles when there are many
  std::vector<Interval> intervals_;
};

}  // namespace flotilla::loadtest
