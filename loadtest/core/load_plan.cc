#include "loadtest/core/load_plan.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/traces/lengths.h"
#include "common/traces/seeded_random.h"

namespace flotilla::loadtest {
namespace {

using Arrivals = PlanOptions::Arrivals;

constexpr std::uint32_t kMaxLength = 1 << 20;
constexpr std::uint32_t kMaxRequests = 10'000'000;
// So many seconds in nanoseconds fit 63 bits.
constexpr double kMaxSeconds = 1e9;

struct ArrivalName {
  absl::string_view name;
  Arrivals arrivals;
};
constexpr auto kArrivals = std::to_array<ArrivalName>({{"closed", Arrivals::kClosed},
                                                       {"constant", Arrivals::kConstant},
                                                       {"poisson", Arrivals::kPoisson},
                                                       {"gamma", Arrivals::kGamma},
                                                       {"bursts", Arrivals::kBursts}});

absl::Status OutOfRange(absl::string_view name, absl::string_view range) {
  return absl::InvalidArgumentError(absl::StrCat(name, " must be ", range));
}

absl::Status Check(const PlanOptions& o) {
  if (o.requests < 1 || o.requests > kMaxRequests) return OutOfRange("requests", "1..10000000");
  if (!(o.rate >= 1e-6) || !(o.rate <= 1e6)) return OutOfRange("rate", "0.000001..1000000");
  if (!(o.gamma_shape >= 0.01) || !(o.gamma_shape <= 100)) return OutOfRange("shape", "0.01..100");
  if (o.burst < 1) return OutOfRange("burst", "1 or more");
  if (o.concurrency < 1) return OutOfRange("concurrency", "1 or more");
  if (o.turns < 1 || o.turns > 1000) return OutOfRange("turns", "1..1000");
  if (o.think_ns < 0 || o.duration_ns < 0)
    return OutOfRange("think time and duration", "0 or more");
  if (!(o.prefix_share >= 0) || !(o.prefix_share <= 1)) return OutOfRange("prefix share", "0..1");
  if (o.prefix_groups < 1) return OutOfRange("prefix groups", "1 or more");
  return absl::OkStatus();
}

// Draws lengths of one distribution, none above `max`.
class LengthDraw {
 public:
  LengthDraw(const Lengths& lengths, std::uint32_t max)
      : lengths_(lengths),
        max_(std::max(max, 1u)),
        log_normal_({.mean = std::min<double>(lengths.mean, max_),
                     .sigma = lengths.kind == Lengths::Kind::kLogNormal ? lengths.sigma : 0,
                     .max = max_}) {}

  std::uint32_t Draw(SeededRandom& random) const {
    if (lengths_.kind == Lengths::Kind::kLogNormal) return log_normal_.Draw(random);
    const auto spread = lengths_.high - lengths_.low + 1;
    return std::min(max_, lengths_.low + static_cast<std::uint32_t>(random.Below(spread)));
  }

 private:
  const Lengths lengths_;
  const std::uint32_t max_;
  const LengthSource log_normal_;
};

// Draws the gaps between conversations, in seconds.
class GapDraw {
 public:
  explicit GapDraw(const PlanOptions& options) : o_(options), random_(options.seed) {}

  double Draw() {
    switch (o_.arrivals) {
      case Arrivals::kClosed:
        return 0;
      case Arrivals::kConstant:
        return 1 / o_.rate;
      case Arrivals::kPoisson:
        return random_.Exponential() / o_.rate;
      case Arrivals::kGamma:
        return random_.Gamma(o_.gamma_shape) / o_.gamma_shape / o_.rate;
      case Arrivals::kBursts:
        return ++drawn_ % o_.burst == 0 ? random_.Exponential() * o_.burst / o_.rate : 0;
    }
    return 0;
  }

 private:
  const PlanOptions& o_;
  SeededRandom random_;
  std::uint64_t drawn_ = 0;
};

absl::StatusOr<std::uint32_t> LengthOf(absl::string_view text) {
  std::uint32_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 1 || value > kMaxLength) {
    return OutOfRange("a length", absl::StrCat("a whole number in 1..", kMaxLength));
  }
  return value;
}

}  // namespace

std::vector<std::string> ArrivalNames() {
  std::vector<std::string> names;
  for (const ArrivalName& row : kArrivals) names.emplace_back(row.name);
  return names;
}

absl::StatusOr<Arrivals> FindArrivals(absl::string_view name) {
  for (const ArrivalName& row : kArrivals) {
    if (row.name == name) return row.arrivals;
  }
  return absl::NotFoundError(
      absl::StrCat("there are no such arrivals; there are ", absl::StrJoin(ArrivalNames(), ", ")));
}

absl::StatusOr<Lengths> ParseLengths(absl::string_view text) {
  Lengths lengths;
  if (absl::ConsumePrefix(&text, "lognormal:")) {
    const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
    lengths.kind = Lengths::Kind::kLogNormal;
    if (parts.size() != 2 || !absl::SimpleAtod(parts[0], &lengths.mean) ||
        !absl::SimpleAtod(parts[1], &lengths.sigma) || !(lengths.mean >= 1) ||
        !(lengths.mean <= kMaxLength) || !(lengths.sigma >= 0) || !(lengths.sigma <= 4)) {
      return absl::InvalidArgumentError(
          absl::StrCat("log-normal lengths are lognormal:MEAN:SIGMA, with a mean in 1..",
                       kMaxLength, " and a sigma in 0..4"));
    }
    return lengths;
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('-', 1));
  const absl::StatusOr<std::uint32_t> low = LengthOf(parts.front());
  if (!low.ok()) return low.status();
  const absl::StatusOr<std::uint32_t> high = LengthOf(parts.back());
  if (!high.ok()) return high.status();
  if (*high < *low) return absl::InvalidArgumentError("lengths are LOW-HIGH, with LOW first");
  lengths.low = *low;
  lengths.high = *high;
  return lengths;
}

absl::StatusOr<LoadPlan> MakePlan(const PlanOptions& options) {
  if (absl::Status s = Check(options); !s.ok()) return s;
  const bool closed = options.arrivals == Arrivals::kClosed;
  LoadPlan plan{.seed = options.seed, .concurrency = closed ? options.concurrency : 0};
  const LengthDraw prompts(options.prompt, options.max_words);
  const LengthDraw outputs(options.output, options.max_output);
  // Each has a sequence of its own, so that another rate does not change the lengths of a seed.
  GapDraw gaps(options);
  SeededRandom lengths(options.seed + (1ull << 40)), thinking(options.seed + (2ull << 40)),
      groups(options.seed + (3ull << 40));
  double at_s = 0;
  std::uint32_t group = 0;
  while (plan.requests.size() < options.requests) {
    PlannedRequest request;
    request.turn = static_cast<std::uint32_t>(plan.requests.size() % options.turns);
    if (request.turn == 0) {
      if (at_s > kMaxSeconds || (!closed && options.duration_ns > 0 &&
                                 at_s * 1e9 > static_cast<double>(options.duration_ns))) {
        break;
      }
      request.arrival_ns = std::llround(at_s * 1e9);
      at_s += gaps.Draw();
      group = static_cast<std::uint32_t>(1 + groups.Below(options.prefix_groups));
    }
    if (options.think_ns > 0 && (closed || request.turn > 0)) {
      request.think_ns =
          static_cast<std::int64_t>(static_cast<double>(options.think_ns) * thinking.Exponential());
    }
    request.prompt_words = prompts.Draw(lengths);
    request.output_tokens = outputs.Draw(lengths);
    if (options.prefix_share > 0 && request.turn == 0) {
      request.prefix_group = group;
      request.prefix_words =
          static_cast<std::uint32_t>(std::lround(options.prefix_share * request.prompt_words));
    }
    plan.requests.push_back(std::move(request));
  }
  return plan;
}

double OfferedRate(const LoadPlan& plan) {
  if (plan.concurrency > 0) return 0;
  std::uint64_t conversations = 0;
  std::int64_t last_ns = 0;
  for (const PlannedRequest& request : plan.requests) {
    if (request.turn > 0) continue;
    ++conversations;
    last_ns = request.arrival_ns;
  }
  if (last_ns == 0) return 0;
  // The gap after the last arrival is as long as the others in the mean.
  const auto count = static_cast<double>(conversations);
  const double seconds = 1e-9 * static_cast<double>(last_ns) * count / (count - 1);
  return static_cast<double>(plan.requests.size()) / seconds;
}

absl::StatusOr<LoadPlan> PlanOfTrace(const RequestTrace& trace, double speed,
                                     const PlanOptions& options) {
  if (!(speed >= 0.001) || !(speed <= 1000)) return OutOfRange("speed", "0.001..1000");
  LoadPlan plan{.seed = options.seed};
  for (const TracedRequest& traced : trace.requests) {
    if (plan.requests.size() == options.requests) break;
    const std::int64_t at = std::llround(static_cast<double>(traced.arrival_ns) / speed);
    if (options.duration_ns > 0 && at > options.duration_ns) break;
    PlannedRequest& request = plan.requests.emplace_back();
    request.arrival_ns = at;
    request.prompt_words = std::min(traced.prompt_tokens, options.max_words);
    request.output_tokens = std::min(traced.output_tokens, options.max_output);
    request.prefix_group = traced.prefix_group;
    request.prefix_words = std::min(traced.prefix_tokens, request.prompt_words);
    request.blocks = traced.blocks;
  }
  return plan;
}

}  // namespace flotilla::loadtest
