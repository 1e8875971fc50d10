// LoadPlan: the requests that a load test sends, and when.
//
// A plan is made of options and a seed, or of a trace. The same options give the same plan. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/traces/request_trace.h"

namespace flotilla::loadtest {

struct PlannedRequest {
  // The time at which the request is due, from the start of the test. Closed loops and later turns
  // do not use it.
  std::int64_t arrival_ns = 0;
  // How long the user waits before this request, after the end of the one before.
  std::int64_t think_ns = 0;
  std::uint32_t prompt_words = 1;  // of the new message
  std::uint32_t output_tokens = 1;
  // Requests of one group begin with the same prefix_words words; 0: of none.
  std::uint32_t prefix_group = 0;
  std::uint32_t prefix_words = 0;
  // Not 0: the request goes on with the conversation of the request before it in the plan.
  std::uint32_t turn = 0;
  std::vector<std::uint64_t> blocks;  // as in TracedRequest

  bool operator==(const PlannedRequest&) const = default;
};

struct LoadPlan {
  std::uint64_t seed = 0;
  // Not 0: a closed loop of so many users. Each sends the next conversation when the last one ends.
  std::uint32_t concurrency = 0;
  // Conversations one after the other, each with its turns in order. Ascending arrivals.
  std::vector<PlannedRequest> requests;
};

// The lengths of messages or answers: "N", "LOW-HIGH" (evenly spread), or "lognormal:MEAN:SIGMA",
// where SIGMA is the standard deviation of the logarithm and the mean is that after the cut.
struct Lengths {
  enum class Kind : std::uint8_t { kUniform, kLogNormal };
  Kind kind = Kind::kUniform;
  std::uint32_t low = 1, high = 1;
  double mean = 1, sigma = 0;
};

// INVALID_ARGUMENT: `text` is not a distribution, or has a length that is not in 1..2^20.
absl::StatusOr<Lengths> ParseLengths(absl::string_view text);

struct PlanOptions {
  enum class Arrivals : std::uint8_t {
    kClosed,    // `concurrency` users, each with one request at a time
    kConstant,  // equal gaps
    kPoisson,   // independent of each other
    kGamma,     // gaps of a Gamma distribution: the lower the shape, the burstier
    kBursts,    // groups of `burst` requests at once; the groups are a Poisson process
  };
  Arrivals arrivals = Arrivals::kClosed;
  double rate = 1;  // conversations a second
  double gamma_shape = 1;
  std::uint32_t burst = 10;
  std::uint32_t concurrency = 1;
  std::uint32_t requests = 100;
  // Not 0: open loops have the requests that are due within this time, at most `requests`.
  std::int64_t duration_ns = 0;
  std::uint32_t turns = 1;
  std::int64_t think_ns = 0;  // mean, exponentially distributed
  Lengths prompt, output;
  std::uint32_t max_words = 1 << 20;  // longer lengths are cut
  std::uint32_t max_output = 1 << 20;
  // This share of each prompt is the common beginning of its group.
  double prefix_share = 0;
  std::uint32_t prefix_groups = 1;
  std::uint64_t seed = 1;
};

// The names that flags take: closed, constant, poisson, gamma, bursts.
std::vector<std::string> ArrivalNames();
// NOT_FOUND lists the names.
absl::StatusOr<PlanOptions::Arrivals> FindArrivals(absl::string_view name);

// INVALID_ARGUMENT: an option out of range, by name.
absl::StatusOr<LoadPlan> MakePlan(const PlanOptions& options);

// The requests of a trace, `speed` times as fast as they were recorded. Of `options`, only
// requests, duration, the longest lengths and the seed count. INVALID_ARGUMENT: `speed` is not in
// 0.001..1000.
absl::StatusOr<LoadPlan> PlanOfTrace(const RequestTrace& trace, double speed,
                                     const PlanOptions& options);

// The requests a second that an open loop offers; 0 for closed loops and for a single arrival.
double OfferedRate(const LoadPlan& plan);

}  // namespace flotilla::loadtest
