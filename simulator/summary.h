// Summary: the figures of a run.
//
// Times to first token and gaps between tokens are those that a client next to the
// scheduler sees. Each figure is defined beside its field. metrics() lists all figures
// once, for tables, JSON and CSV.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "simulator/run_record.h"

namespace flotilla::simulator {

// The service level that a request must meet to count as good.
struct ServiceLevel {
  double ttft_ms = 1000;  // time to its first token
  double itl_ms = 100;    // mean gap between its tokens
};

struct Percentiles {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, worst = 0;
};

struct TenantSummary {
  std::string name;
  std::uint64_t requests = 0;
  std::uint64_t finished = 0;
  std::uint64_t contended_tokens = 0;
  double ttft_p50_ms = 0;
  double ttft_p99_ms = 0;
};

// Requests that are alike.
struct ClassSummary {
  std::string name;
  std::uint64_t requests = 0;
  Percentiles ttft_ms;  // of those that got a first token
};

// Prompts of at most so many tokens are short, or of medium length. All others are long.
inline constexpr std::uint32_t kShortPrompt = 64, kMediumPrompt = 256;

struct Summary {
  std::string label;
  // Requests by how they ended.
  double requests = 0, finished = 0, refused = 0, expired = 0;
  // The time from the first arrival to the last event.
  double seconds = 0;
  double requests_per_s = 0;  // finished ones
  // The same in the middle half: from the end of the first quarter of the finished requests to
  // that of the third. It leaves out how a closed loop begins and how its last users end.
  double steady_requests_per_s = 0;
  double output_tokens_per_s = 0;
  double prompt_tokens_per_s = 0;  // of finished ones, cached tokens included
  // Finished requests that kept the service level, per second and as a share of all.
  double goodput_per_s = 0;
  double good_share = 0;
  // Milliseconds. TTFT: arrival to first token, one for each request that got one.
  // ITL: between two tokens of a request, one for each pair. Latency: arrival to
  // last token of finished requests.
  Percentiles ttft_ms, itl_ms, latency_ms;
  // Latency of a finished request over its output tokens ("normalized latency" of
  // Kwon et al. 2023).
  Percentiles token_latency_ms;
  double mean_running = 0, peak_running = 0;
  double mean_waiting = 0, peak_waiting = 0;
  // The used share of the KV pool's slots: its mean over time, and its peak. Then the share of the
  // used slots that no plan sent has written or will write.
  double mean_memory = 0, peak_memory = 0, wasted_memory = 0;
  double preemptions = 0;
  double swapped = 0;       // preemptions whose blocks went to a tier
  double cached_share = 0;  // of the prompt tokens looked up
  double steps = 0;
  double step_ms = 0;             // mean
  double rows_per_step = 0;       // mean, prefill and decode
  double busy_share = 0;          // of the time, the group (its first stage) computes
  double memory_bound_share = 0;  // of the steps of a roofline
  // Jain's index of the tokens that tenants got while requests waited: 1 if all tenants
  // got as much, 1 / tenants if one got everything, 1 if no request ever waited.
  double fairness = 1;
  std::vector<TenantSummary> tenants;
  // By the length of the prompt (three classes), by priority (the highest first), and by tenant.
  std::vector<ClassSummary> by_prompt, by_priority, by_tenant;
};

// Sums up a run of `workload`.
Summary Summarize(const Workload& workload, const RunRecord& record, const ServiceLevel& level);

// The nearest-rank percentiles and the mean; zeros if there are no values. Sorts `values`.
Percentiles PercentilesOf(std::vector<double>& values);

// (sum x)^2 / (n * sum x^2); 1 if there are no values or only zeros (Jain, Chiu, Hawe
// 1984).
double JainIndex(absl::Span<const std::uint64_t> values);

}  // namespace flotilla::simulator
