// Whether a request may be what ended a worker group. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/core/watch.h"

namespace flotilla::worker {

// How the process of one member ended, as far as the agent knows.
struct MemberEnd {
  enum class How : std::uint8_t {
    kRuns,     // it had not ended when the fault was found
    kUnknown,  // it ended on another host, which does not say how
    kSignal,   // `number` ended it
    kExit,     // with code `number`
  };
  How how = How::kRuns;
  int number = 0;

  bool operator==(const MemberEnd&) const = default;
};

// What is known of a group that has ended.
struct GroupEnd {
  MemberEnd launcher;
  std::vector<MemberEnd> ranks;
  // The kernel has killed a process of the ranks' cgroups for its memory since they started.
  bool out_of_memory = false;
};

// A request may make a rank crash (SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTRAP, SIGSYS), end
// with an error, use too much memory, send nonsense, fall silent, or not finish its step. No
// request sends a rank another signal, stops a member or harms the launcher. An end that nothing
// explains counts as a request's, because a request that ends groups must not go on for ever.
bool BlamesRequests(Fault fault, const GroupEnd& end);

}  // namespace flotilla::worker
