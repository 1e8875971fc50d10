#include "worker/core/blame.h"

#include <algorithm>
#include <csignal>
#include <iterator>

namespace flotilla::worker {
namespace {

// mpirun's exit code if a signal ended a rank is this and the signal's number.
constexpr int kSignalCode = 128;

bool IsCrash(int signal) {
  constexpr int kCrashes[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
  return std::find(std::begin(kCrashes), std::end(kCrashes), signal) != std::end(kCrashes);
}

bool IsCrash(const MemberEnd& rank) {
  return rank.how == MemberEnd::How::kSignal && IsCrash(rank.number);
}

bool IsError(const MemberEnd& rank) {
  return rank.how == MemberEnd::How::kExit && rank.number != 0;
}

bool IsUnknown(const MemberEnd& rank) { return rank.how == MemberEnd::How::kUnknown; }

// A member has died.
bool DeathBlamesRequests(const GroupEnd& end) {
  const auto any = [&](bool (*is)(const MemberEnd&)) {
    return std::any_of(end.ranks.begin(), end.ranks.end(), is);
  };
  if (end.out_of_memory || any(IsCrash)) return true;
  // The ranks end with their launcher, in whatever way.
  if (end.launcher.how == MemberEnd::How::kSignal) return false;
  const bool launcher_saw_crash =
      end.launcher.how == MemberEnd::How::kExit && IsCrash(end.launcher.number - kSignalCode);
  return launcher_saw_crash || any(IsError) || any(IsUnknown);
}

}  // namespace

bool BlamesRequests(Fault fault, const GroupEnd& end) {
  switch (fault) {
    case Fault::kDied:
      return DeathBlamesRequests(end);
    case Fault::kStopped:
    case Fault::kStalled:  // no step runs while ranks load
      return false;
    case Fault::kSilent:
    case Fault::kStuck:
    case Fault::kGarbage:
      return true;
  }
  return true;
}

}  // namespace flotilla::worker
