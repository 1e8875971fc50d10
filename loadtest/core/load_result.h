// LoadResult: the figures of one load test, or of its simulation. The tables below list them once,
// for tables of text, JSON, comparisons and the HTML report. Values only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace flotilla::loadtest {

// Times in milliseconds.
struct Latency {
  double count = 0, mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, p999 = 0, max = 0;
  // Points (ms, percent of the values that are at most as great).
  std::vector<std::pair<double, double>> curve;
};

// What happened in one interval of the test.
struct LoadInterval {
  double start_s = 0;
  double tokens_per_s = 0;
  double in_flight = 0;  // mean
  double finished_per_s = 0, failed_per_s = 0;
};

struct LoadResult {
  std::string label;
  // Settings for people to read, as name and value.
  std::vector<std::pair<std::string, std::string>> settings;

  // Requests a second that the plan wants; 0 in closed loops.
  double offered_per_s = 0;
  // From the start to the end of the last request.
  double seconds = 0;
  // Requests sent, and how they ended.
  double requests = 0, finished = 0, failed = 0;
  double requests_per_s = 0;  // finished ones
  double output_tokens = 0, output_tokens_per_s = 0;
  double prompt_tokens = 0, prompt_tokens_per_s = 0;
  double cached_tokens = 0;  // of the prompts, as the server says
  // Finished requests that kept the service level, per second and as a share of all requests.
  double goodput_per_s = 0, good_share = 0;
  double peak_in_flight = 0;
  // Processor time of the load generator itself, and as a share of one core. 0: not measured.
  double cpu_seconds = 0, cpu_share = 0;

  // TTFT: from when the request was due to its first token. ITL: between two events with text of a
  // request. TPOT: from first to last token over the tokens after the first. E2E: from when the
  // request was due to its end, of finished requests. Send lag: from when a request was due to when
  // it was sent.
  Latency ttft_ms, itl_ms, tpot_ms, e2e_ms, send_lag_ms;

  // The user ended the test before its plan did.
  bool interrupted = false;

  std::map<std::string, double> failures;  // requests by reason
  std::vector<LoadInterval> intervals;
};

struct Figure {
  const char* key;
  const char* title;
  int decimals;
  double LoadResult::*value;
  // Whether the figure says nothing if it is 0.
  bool quiet = false;
};
absl::Span<const Figure> Figures();

struct LatencyFigure {
  const char* key;
  const char* title;
  Latency LoadResult::*value;
};
absl::Span<const LatencyFigure> LatencyFigures();

struct LatencyColumn {
  const char* key;
  double Latency::*value;
};
// Mean, percentiles and the greatest value.
absl::Span<const LatencyColumn> LatencyColumns();

}  // namespace flotilla::loadtest
