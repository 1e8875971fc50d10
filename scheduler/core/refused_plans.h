// RefusedPlans: finds the request whose operations a worker group refuses.
//
// A refused plan ends the epoch, so all requests are computed again. The requests that had new
// operations in the plan (an open, a fork, a chunk) are the candidates, and they are bisected: only
// one half of them may start at a time, and all other requests go on. If a plan is refused again,
// the candidates are those of the half that had operations in it; if none had, the requests of that
// plan are held until the candidates before them are settled. A candidate that gets past the point
// of the refusal is cleared. A candidate that is alone and is refused again fails. So a request
// that is refused each time is found among n candidates after at most 2 + log2(n) refusals.
//
// Candidates that do not get on in kTurnNs, since others go first by the policy or take the places,
// give their turn to those that they hold back.
//
// The candidates wait before each try: kFirstPauseNs, and twice as long each time that requests
// which were cleared are in the way again (a digest may drift without any request being the cause)
// or that all candidates were cleared and a plan is refused, at most kLongestPauseNs. After
// kMostTries of these, each within kQuietNs of the one before, the candidates are given back, and
// no other request is.
//
// It is a value: it reads no clock, and the scheduler core owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "common/types/ids.h"

namespace flotilla::scheduler {

class RefusedPlans {
 public:
  static constexpr std::int64_t kFirstPauseNs = 100'000'000;
  static constexpr std::int64_t kLongestPauseNs = 10'000'000'000;
  static constexpr std::int64_t kQuietNs = 60'000'000'000;
  static constexpr std::uint32_t kMostTries = 10;
  static constexpr std::int64_t kTurnNs = 10'000'000'000;

  struct Candidate {
    RequestId request;
    // The candidate is cleared when it has computed this many positions.
    std::uint32_t cleared_at = 0;
  };
  // What follows from a refusal. Both lists may be empty.
  struct Outcome {
    std::vector<RequestId> failed;      // their operations are refused
    std::vector<RequestId> given_back;  // nobody in particular was found
  };

  // Records that a plan was refused in which these requests had new operations. The ids differ.
  Outcome OnRefused(std::int64_t now_ns, std::vector<Candidate> operations);

  // Clears the candidates that have got far enough, and lets others try when none is left that
  // may. `computed` returns the positions that a request has computed, or none if it has ended.
  void Update(std::int64_t now_ns,
              const std::function<std::optional<std::uint32_t>(const RequestId&)>& computed);

  // Whether the request may start at the time of the last Update.
  bool MayStart(const RequestId& request) const;
  // The candidates whose turn it is.
  const std::vector<Candidate>& tried() const { return tried_; }
  // The number of requests that may have to wait.
  std::size_t candidates() const { return tried_.size() + held_.size(); }
  // When candidates may start that wait for the end of a pause; none: none does.
  std::optional<std::int64_t> wake_ns() const;

 private:
  // Begins with a new set of candidates, the first half of which may try. `refused`: all of them
  // were in the plan that was refused just now.
  void Split(std::vector<Candidate> candidates, bool refused);
  void Pause(std::int64_t now_ns, bool learned);

  std::vector<Candidate> tried_;       // may start after the pause
  std::vector<Candidate> held_;        // may not start
  std::vector<RequestId> cleared_;     // while others are candidates
  bool confirming_ = false;            // tried_ was one candidate that was refused before
  std::int64_t now_ns_ = 0;            // of the last Update
  std::int64_t resume_ns_ = 0;         // the end of the pause
  std::int64_t turn_ends_ns_ = 0;      // when tried_ lets held_ try
  std::uint64_t tried_positions_ = 0;  // what tried_ had computed in all
  std::int64_t last_refused_ns_ = 0;
  std::uint32_t tries_ = 0;  // refusals of which no cause was found
};

}  // namespace flotilla::scheduler
