// GroupWatch: says whether a worker group is well, from what its agent sees of the
// members: the launcher (mpirun) and the ranks.
//
// Pure: times and samples come in, a verdict comes out. Called by the agent at every
// tick of its watch; one thread. It never asks MPI, which notices no hang at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"

namespace flotilla {

// One member at one moment.
struct MemberSample {
  enum class State : std::uint8_t {
    kAlive,
    kStopped,  // by a signal, as SIGSTOP does
    kGone,     // exited, or its socket was closed
  };
  State state = State::kAlive;
  // When it last wrote its heartbeat, on the agent's clock; none: it does not write
  // one (the launcher, and a rank that has not connected yet).
  std::optional<std::int64_t> heartbeat_ns;
  // The work underway waits for it.
  bool behind = false;
};

// What the group has been asked for and not done: a step, the start of an epoch, or
// of the processes.
struct WorkUnderway {
  std::int64_t since_ns = 0;
  std::int64_t limit_ns = 0;
};

enum class Fault : std::uint8_t {
  kNone,
  kDied,     // a member is gone
  kStopped,  // a member is stopped
  kSilent,   // a heartbeat is too old
  kStuck,    // the work underway takes too long
};

struct Verdict {
  static constexpr int kLauncher = -1;

  Fault fault = Fault::kNone;
  int member = kLauncher;   // a rank, or kLauncher
  std::int64_t age_ns = 0;  // of the heartbeat, or of the work; else 0

  bool operator==(const Verdict&) const = default;
};

struct WatchOptions {
  std::int64_t period_ns = 100'000'000;             // between two calls of Judge
  std::int64_t late_ns = 300'000'000;               // that a call may be late
  std::int64_t heartbeat_limit_ns = 1'000'000'000;  // ten times the ranks' period
};

class GroupWatch {
 public:
  explicit GroupWatch(const WatchOptions& options) : options_(options) {}

  // The first fault that there is: death before stops before silence before deadlines,
  // and the launcher before ranks.
  //
  // If the agent itself comes late, it has not seen what happened in between, and what
  // stopped it may have stopped the members too: then only a death counts, and all
  // times begin again.
  Verdict Judge(std::int64_t now_ns, const MemberSample& launcher,
                absl::Span<const MemberSample> ranks, const std::optional<WorkUnderway>& work);

 private:
  bool IsLate(std::int64_t now_ns) const;

  WatchOptions options_;
  std::optional<std::int64_t> last_ns_;  // the last call
  std::int64_t armed_ns_ = INT64_MIN;    // times before it do not count
};

// How long a step may take: 3 times what was predicted, and 2 s at least, since
// predictions say nothing of a machine that does something else for a moment.
std::int64_t StepLimitNs(std::int64_t predicted_ns);

// How long to wait before the processes are started again, after `failures` attempts
// in a row that did not become ready: 0, 0, 1, 2, 4 ... 30 s.
std::int64_t RestartDelayNs(int failures);

}  // namespace flotilla
