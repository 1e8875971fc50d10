#include "worker/core/watch.h"

#include <algorithm>

namespace flotilla::worker {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

// The index of the first rank for which `is` holds, if any.
template <class Is>
std::optional<int> FirstRank(absl::Span<const MemberSample> ranks, const Is& is) {
  const auto found = std::find_if(ranks.begin(), ranks.end(), is);
  if (found == ranks.end()) return std::nullopt;
  return static_cast<int>(found - ranks.begin());
}

// The first member in this state.
std::optional<int> FirstOf(MemberSample::State state, const MemberSample& launcher,
                           absl::Span<const MemberSample> ranks) {
  if (launcher.state == state) return Verdict::kLauncher;
  return FirstRank(ranks, [&](const MemberSample& rank) { return rank.state == state; });
}

}  // namespace

bool GroupWatch::IsLate(std::int64_t now_ns) const {
  return last_ns_.has_value() && now_ns - *last_ns_ > options_.period_ns + options_.late_ns;
}

// The first rank that gets no further with loading.
std::optional<int> GroupWatch::Stalled(std::int64_t now_ns,
                                       absl::Span<const MemberSample> ranks) const {
  if (options_.load_stall_ns == 0) return std::nullopt;
  std::int64_t latest_ns = armed_ns_;
  for (const MemberSample& rank : ranks) {
    latest_ns = std::max(latest_ns, rank.moved_ns.value_or(INT64_MIN));
  }
  return FirstRank(ranks, [&](const MemberSample& rank) {
    if (!rank.moved_ns.has_value()) return false;
    const std::int64_t since_ns = rank.waits ? latest_ns : std::max(*rank.moved_ns, armed_ns_);
    return now_ns - since_ns > options_.load_stall_ns;
  });
}

Verdict GroupWatch::Judge(std::int64_t now_ns, const MemberSample& launcher,
                          absl::Span<const MemberSample> ranks,
                          const std::optional<WorkUnderway>& work) {
  const bool late = IsLate(now_ns);
  last_ns_ = now_ns;
  if (const auto gone = FirstOf(MemberSample::State::kGone, launcher, ranks)) {
    return {.fault = Fault::kDied, .member = *gone};
  }
  if (late) {
    armed_ns_ = now_ns;
    return {};
  }
  if (const auto stopped = FirstOf(MemberSample::State::kStopped, launcher, ranks)) {
    return {.fault = Fault::kStopped, .member = *stopped};
  }
  const auto age = [&](std::int64_t since_ns) { return now_ns - std::max(since_ns, armed_ns_); };
  const auto silent = FirstRank(ranks, [&](const MemberSample& rank) {
    return rank.heartbeat_ns.has_value() && age(*rank.heartbeat_ns) > options_.heartbeat_limit_ns;
  });
  if (silent) {
    return {
        .fault = Fault::kSilent, .member = *silent, .age_ns = age(*ranks[*silent].heartbeat_ns)};
  }
  if (const auto stalled = Stalled(now_ns, ranks)) {
    return {.fault = Fault::kStalled,
            .member = *stalled,
            .age_ns = age(ranks[*stalled].moved_ns.value_or(now_ns))};
  }
  if (work.has_value() && age(work->since_ns) > work->limit_ns) {
    const auto behind = FirstRank(ranks, [](const MemberSample& rank) { return rank.behind; });
    return {.fault = Fault::kStuck,
            .member = behind.value_or(Verdict::kLauncher),
            .age_ns = age(work->since_ns)};
  }
  return {};
}

std::int64_t StepLimitNs(std::int64_t predicted_ns) {
  constexpr std::int64_t kFactor = 3;
  return std::clamp(predicted_ns, 2 * kSecond / kFactor + 1, INT64_MAX / kFactor) * kFactor;
}

std::int64_t RestartDelayNs(int failures) {
  if (failures <= 1) return 0;
  return std::min<std::int64_t>(30, std::int64_t{1} << std::min(failures - 2, 5)) * kSecond;
}

}  // namespace flotilla::worker
