#include "scheduler/core/refused_plans.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace flotilla::scheduler {
namespace {

using Candidates = std::vector<RefusedPlans::Candidate>;

bool Contains(const Candidates& candidates, const RequestId& request) {
  return std::any_of(
      candidates.begin(), candidates.end(),
      [&](const RefusedPlans::Candidate& candidate) { return candidate.request == request; });
}

}  // namespace

RefusedPlans::Outcome RefusedPlans::OnRefused(std::int64_t now_ns,
                                              std::vector<Candidate> operations) {
  Outcome outcome;
  if (tries_ > 0 && now_ns - last_refused_ns_ > kQuietNs) tries_ = 0;
  last_refused_ns_ = now_ns;
  Candidates again, others;
  for (Candidate& candidate : operations) {
    (Contains(tried_, candidate.request) ? again : others).push_back(candidate);
  }
  const bool learned = !again.empty();
  const bool alone = confirming_ && again.size() == 1;
  if (alone && others.empty()) {
    outcome.failed.push_back(again[0].request);
    tries_ = 0;
    Split(std::exchange(held_, {}), /*refused=*/false);
    Pause(now_ns, /*learned=*/true);
    return outcome;
  }
  if (alone || (!learned && !tried_.empty())) {
    // The others wait for their turn. If one candidate is alone, the next refusal decides about it.
    bool again_after_cleared = false;
    for (const Candidate& other : others) {
      again_after_cleared |= std::erase(cleared_, other.request) > 0;
      if (!Contains(held_, other.request)) held_.push_back(other);
    }
    if (!learned && !again_after_cleared) return outcome;
  } else {
    Split(learned ? std::move(again) : std::move(operations), /*refused=*/true);
  }
  Pause(now_ns, learned);
  if (tries_ < kMostTries) return outcome;
  for (const Candidates* candidates : {&tried_, &held_}) {
    for (const Candidate& candidate : *candidates) outcome.given_back.push_back(candidate.request);
  }
  Split({}, /*refused=*/false);
  tries_ = 0;
  return outcome;
}

void RefusedPlans::Split(std::vector<Candidate> candidates, bool refused) {
  const auto half = static_cast<std::ptrdiff_t>((candidates.size() + 1) / 2);
  held_.assign(candidates.begin() + half, candidates.end());
  candidates.resize(half);
  tried_ = std::move(candidates);
  confirming_ = refused && tried_.size() == 1 && held_.empty();
  turn_ends_ns_ = now_ns_ + kTurnNs;
}

void RefusedPlans::Pause(std::int64_t now_ns, bool learned) {
  if (!learned) ++tries_;
  // 100 ms << 7 is above the longest pause.
  const std::uint32_t doublings = learned || tries_ == 0 ? 0 : std::min(tries_ - 1, 7u);
  resume_ns_ = now_ns + std::min(kFirstPauseNs << doublings, kLongestPauseNs);
  turn_ends_ns_ = resume_ns_ + kTurnNs;
}

void RefusedPlans::Update(
    std::int64_t now_ns,
    const std::function<std::optional<std::uint32_t>(const RequestId&)>& computed) {
  now_ns_ = now_ns;
  if (candidates() == 0) return;
  bool ended = false;
  std::uint64_t all = 0;
  std::erase_if(tried_, [&](const Candidate& candidate) {
    const std::optional<std::uint32_t> positions = computed(candidate.request);
    ended |= !positions.has_value();
    all += positions.value_or(0);
    if (positions.has_value() && *positions < candidate.cleared_at) return false;
    cleared_.push_back(candidate.request);
    return true;
  });
  // Nothing was learned about a candidate that its client cancelled.
  if (ended && tries_ > 0) --tries_;
  std::erase_if(held_, [&](const Candidate& s) { return !computed(s.request).has_value(); });
  std::erase_if(cleared_, [&](const RequestId& id) { return !computed(id).has_value(); });
  if (tried_.empty()) Split(std::exchange(held_, {}), /*refused=*/false);
  if (all > tried_positions_) turn_ends_ns_ = std::max(turn_ends_ns_, now_ns + kTurnNs);
  tried_positions_ = all;
  if (!held_.empty() && now_ns >= turn_ends_ns_) {
    std::swap(tried_, held_);
    confirming_ = false;
    tried_positions_ = 0;
    turn_ends_ns_ = now_ns + kTurnNs;
  }
  if (candidates() == 0) cleared_.clear();
}

bool RefusedPlans::MayStart(const RequestId& request) const {
  if (candidates() == 0) return true;
  if (Contains(held_, request)) return false;
  return now_ns_ >= resume_ns_ || !Contains(tried_, request);
}

std::optional<std::int64_t> RefusedPlans::wake_ns() const {
  if (tried_.empty() || now_ns_ >= resume_ns_) return std::nullopt;
  return resume_ns_;
}

}  // namespace flotilla::scheduler
