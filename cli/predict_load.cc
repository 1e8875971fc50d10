#include "cli/predict_load.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "simulator/simulator.h"
#include "simulator/workload.h"

namespace flotilla::cli {
namespace {

using loadtest::PlannedRequest;

simulator::Workload WorkloadOf(const loadtest::LoadPlan& plan, double tokens_per_word) {
  simulator::Workload workload;
  workload.name = "loadtest";
  workload.seed = plan.seed;
  workload.concurrency = plan.concurrency;
  const auto tokens = [&](std::uint32_t words) {
    return static_cast<std::uint32_t>(std::lround(words * tokens_per_word));
  };
  for (const PlannedRequest& request : plan.requests) {
    workload.requests.push_back({.arrival_ns = request.arrival_ns,
                                 .think_ns = request.think_ns,
                                 .prompt_tokens = std::max(1u, tokens(request.prompt_words)),
                                 .output_tokens = request.output_tokens,
                                 .prefix_group = request.prefix_group,
                                 .prefix_tokens = tokens(request.prefix_words),
                                 .blocks = request.blocks});
  }
  return workload;
}

// The moments of a request, in the order in which they come if they are at the same time.
// A user of a closed loop sends when the last request has ended.
enum class Moment : std::uint8_t { kFirstToken, kEnd, kSent, kEndWithoutToken };

}  // namespace

absl::StatusOr<loadtest::LoadResult> PredictLoad(const simulator::Machine& machine,
                                                 const loadtest::LoadPlan& plan,
                                                 double tokens_per_word,
                                                 const loadtest::ServiceLevel& level) {
  for (const PlannedRequest& request : plan.requests) {
    if (request.turn > 0) {
      return absl::InvalidArgumentError(
          "--predict cannot be used with --turns, because later prompts depend on the answers");
    }
  }
  simulator::SimulationOptions options;
  options.core = simulator::DefaultOptions(machine);
  options.lengths_known = true;  // of a request with max_tokens and ignore_eos
  const absl::StatusOr<simulator::RunRecord> record =
      simulator::Simulate(machine, WorkloadOf(plan, tokens_per_word), options);
  if (!record.ok()) return record.status();

  std::vector<std::tuple<std::int64_t, Moment, std::size_t>> moments;
  for (std::size_t i = 0; i < record->requests.size(); ++i) {
    const simulator::RequestRecord& request = record->requests[i];
    moments.emplace_back(request.arrival_ns, Moment::kSent, i);
    if (request.output_tokens > 0) {
      moments.emplace_back(request.first_token_ns, Moment::kFirstToken, i);
      moments.emplace_back(request.last_token_ns, Moment::kEnd, i);
    } else {
      moments.emplace_back(request.arrival_ns, Moment::kEndWithoutToken, i);
    }
  }
  std::sort(moments.begin(), moments.end());
  loadtest::LoadRecorder recorder(level);
  std::vector<loadtest::RequestMeter> meters(record->requests.size());
  for (const auto& [at, moment, i] : moments) {
    const simulator::RequestRecord& request = record->requests[i];
    if (moment == Moment::kSent) {
      meters[i] = recorder.OnSent(at, at);
    } else if (moment == Moment::kFirstToken) {
      recorder.OnToken(meters[i], at);
    } else if (request.outcome == RequestOutcome::kFinished) {
      meters[i].last_ns = at;
      meters[i].events = request.output_tokens;
      recorder.OnFinished(meters[i],
                          {.completion_tokens = request.output_tokens,
                           .prompt_tokens = static_cast<std::uint64_t>(
                               std::lround(plan.requests[i].prompt_words * tokens_per_word)),
                           .cached_tokens = request.cached_tokens},
                          at);
    } else {
      recorder.OnFailed("refused by the scheduler", at);
    }
  }
  for (const std::uint32_t gap_us : record->gaps_us) {
    recorder.AddGap(static_cast<std::int64_t>(gap_us) * 1000);
  }
  loadtest::LoadResult result = recorder.Result();
  result.offered_per_s = loadtest::OfferedRate(plan);
  result.intervals.clear();
  return result;
}

}  // namespace flotilla::cli
