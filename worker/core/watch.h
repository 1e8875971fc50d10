// GroupWatch: judges whether a worker group is healthy, from what its agent sees of the
// members: the launcher (mpirun) and the ranks.
//
// GroupWatch is pure: times and samples go in, and a verdict comes out. The agent calls
// it at every tick of its watch, from one thread. GroupWatch never asks MPI, because MPI
// notices no hang at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"

namespace flotilla::worker {

// One member at one moment.
struct MemberSample {
  enum class State : std::uint8_t {
    kAlive,
    kStopped,  // by a signal such as SIGSTOP
    kGone,     // exited, or its socket was closed
  };
  State state = State::kAlive;
  // When the member last wrote its heartbeat, on the agent's clock. None: it does not
  // write one (the launcher, and a rank that has not connected yet).
  std::optional<std::int64_t> heartbeat_ns;
  // The work underway waits for this member.
  bool behind = false;
  // When the member last got further with loading, on the agent's clock. None: it does not load.
  std::optional<std::int64_t> moved_ns;
  // The member may be waiting for other ranks, which load. It then gets further as long as one of
  // them does.
  bool waits = false;
};

// Work that the group was asked for and has not done: a step, the start of an epoch, or
// the start of the processes.
struct WorkUnderway {
  std::int64_t since_ns = 0;
  std::int64_t limit_ns = 0;
};

// Why the processes of a group are ended and started again.
enum class Fault : std::uint8_t {
  kDied,     // a member is gone
  kStopped,  // a member is stopped
  kSilent,   // a heartbeat is too old
  kStuck,    // the work underway takes too long
  kGarbage,  // a rank sent an invalid message; GroupWatch sees none
  kStalled,  // a rank gets no further with loading
};
inline constexpr std::size_t kFaults = 6;

constexpr const char* FaultName(Fault fault) {
  constexpr const char* kNames[kFaults] = {"died",  "stopped", "silent",
                                           "stuck", "garbage", "stalled"};
  return kNames[static_cast<std::size_t>(fault)];
}

struct Verdict {
  static constexpr int kLauncher = -1;

  std::optional<Fault> fault;  // none: the group is healthy
  int member = kLauncher;      // a rank, or kLauncher
  std::int64_t age_ns = 0;     // of the heartbeat, or of the work; else 0

  bool operator==(const Verdict&) const = default;
};

struct WatchOptions {
  std::int64_t period_ns = 100'000'000;             // between two calls of Judge
  std::int64_t late_ns = 300'000'000;               // how late a call may be
  std::int64_t heartbeat_limit_ns = 1'000'000'000;  // ten times the ranks' period
  std::int64_t load_stall_ns = 10'000'000'000;      // without getting further; 0: no limit
};

class GroupWatch {
 public:
  explicit GroupWatch(const WatchOptions& options) : options_(options) {}

  // Returns the first fault in this order: deaths, stops, silence, stalls, deadlines. Within each
  // kind the launcher comes before the ranks.
  //
  // If the agent itself calls late, it has not seen what happened in between, and what
  // stopped it may have stopped the members too. Then only a death counts, and all times
  // begin again.
  Verdict Judge(std::int64_t now_ns, const MemberSample& launcher,
                absl::Span<const MemberSample> ranks, const std::optional<WorkUnderway>& work);

 private:
  bool IsLate(std::int64_t now_ns) const;
  std::optional<int> Stalled(std::int64_t now_ns, absl::Span<const MemberSample> ranks) const;

  WatchOptions options_;
  std::optional<std::int64_t> last_ns_;  // the last call
  std::int64_t armed_ns_ = INT64_MIN;    // times before it do not count
};

// How long a step may take: 3 times the predicted time, and at least 2 s, because a
// prediction does not account for a machine that does something else for a moment.
std::int64_t StepLimitNs(std::int64_t predicted_ns);

// How long to wait before the processes are started again, after `failures` attempts
// in a row did not become ready: 0, 0, 1, 2, 4 ... 30 s.
std::int64_t RestartDelayNs(int failures);

}  // namespace flotilla::worker
