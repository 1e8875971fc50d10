#include "scheduler/core/refused_plans.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace flotilla::scheduler {
namespace {

using Suspects = std::vector<RefusedPlans::Suspect>;

bool Contains(const Suspects& suspects, const RequestId& request) {
  return std::any_of(suspects.begin(), suspects.end(), [&](const RefusedPlans::Suspect& suspect) {
    return suspect.request == request;
  });
}

}  // namespace

RefusedPlans::Outcome RefusedPlans::OnRefused(std::int64_t now_ns,
                                              std::vector<Suspect> operations) {
  Outcome outcome;
  if (tries_ > 0 && now_ns - last_refused_ns_ > kQuietNs) tries_ = 0;
  last_refused_ns_ = now_ns;
  Suspects again, others;
  for (Suspect& suspect : operations) {
    (Contains(tried_, suspect.request) ? again : others).push_back(suspect);
  }
  const bool learned = !again.empty();
  // The plan had no suspect's operations, except perhaps of those that have had their try before.
  // Its requests wait for their turn.
  if (!tried_.empty() && again.empty()) {
    for (Suspect& suspect : others) {
      if (!Contains(held_, suspect.request)) held_.push_back(suspect);
    }
    return outcome;
  }
  const bool alone = confirming_ && again.size() == 1;
  if (alone && others.empty()) {
    outcome.failed.push_back(again[0].request);
    tries_ = 0;
    Split(std::exchange(held_, {}), /*refused=*/false);
    Pause(now_ns, /*learned=*/true);
    return outcome;
  }
  if (alone) {  // these others are kept away from it, so that the next refusal decides
    for (const Suspect& other : others) {
      if (!Contains(held_, other.request)) held_.push_back(other);
    }
  } else {
    Split(again.empty() ? std::move(operations) : std::move(again), /*refused=*/true);
  }
  Pause(now_ns, learned);
  if (tries_ < kMostTries) return outcome;
  for (const Suspects* suspects : {&tried_, &held_}) {
    for (const Suspect& suspect : *suspects) outcome.given_back.push_back(suspect.request);
  }
  Split({}, /*refused=*/false);
  tries_ = 0;
  return outcome;
}

void RefusedPlans::Split(std::vector<Suspect> suspects, bool refused) {
  const auto half = static_cast<std::ptrdiff_t>((suspects.size() + 1) / 2);
  held_.assign(suspects.begin() + half, suspects.end());
  suspects.resize(half);
  tried_ = std::move(suspects);
  confirming_ = refused && tried_.size() == 1 && held_.empty();
}

void RefusedPlans::Pause(std::int64_t now_ns, bool learned) {
  if (!learned) ++tries_;
  // 100 ms << 7 is above the longest pause.
  const std::uint32_t doublings = learned || tries_ == 0 ? 0 : std::min(tries_ - 1, 7u);
  resume_ns_ = now_ns + std::min(kFirstPauseNs << doublings, kLongestPauseNs);
}

void RefusedPlans::Update(
    std::int64_t now_ns,
    const std::function<std::optional<std::uint32_t>(const RequestId&)>& computed) {
  now_ns_ = now_ns;
  if (suspects() == 0) return;
  bool ended = false;
  std::erase_if(tried_, [&](const Suspect& suspect) {
    const std::optional<std::uint32_t> positions = computed(suspect.request);
    ended |= !positions.has_value();
    return !positions.has_value() || *positions >= suspect.cleared_at;
  });
  // Nothing was learned about a suspect that its client cancelled.
  if (ended && tries_ > 0) --tries_;
  std::erase_if(held_, [&](const Suspect& s) { return !computed(s.request).has_value(); });
  if (tried_.empty()) Split(std::exchange(held_, {}), /*refused=*/false);
}

bool RefusedPlans::MayStart(const RequestId& request) const {
  if (suspects() == 0) return true;
  if (Contains(held_, request)) return false;
  return now_ns_ >= resume_ns_ || !Contains(tried_, request);
}

std::optional<std::int64_t> RefusedPlans::wake_ns() const {
  if (tried_.empty() || now_ns_ >= resume_ns_) return std::nullopt;
  return resume_ns_;
}

}  // namespace flotilla::scheduler
