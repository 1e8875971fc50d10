// Tests which ends of a group may be a request's.
#include "worker/core/blame.h"

#include <csignal>

#include <gtest/gtest.h>

namespace flotilla::worker {
namespace {

constexpr MemberEnd kRuns{};
constexpr MemberEnd kUnknown{.how = MemberEnd::How::kUnknown};
constexpr MemberEnd Signal(int number) {
  return {.how = MemberEnd::How::kSignal, .number = number};
}
constexpr MemberEnd Exit(int code) { return {.how = MemberEnd::How::kExit, .number = code}; }

bool DeathBlames(MemberEnd rank, MemberEnd launcher = kRuns) {
  return BlamesRequests(Fault::kDied, {.launcher = launcher, .ranks = {kRuns, rank}});
}

TEST(Blame, CrashesAndErrorsOfRanksBlameRequests) {
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
    EXPECT_TRUE(DeathBlames(Signal(signal))) << signal;
    EXPECT_TRUE(DeathBlames(kRuns, Exit(128 + signal))) << signal;  // seen by the launcher alone
  }
  EXPECT_TRUE(DeathBlames(Exit(1)));
  EXPECT_TRUE(DeathBlames(kUnknown)) << "a rank on another host";
}

TEST(Blame, SignalsFromOutsideBlameNobody) {
  for (const int signal : {SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    EXPECT_FALSE(DeathBlames(Signal(signal))) << signal;
    EXPECT_FALSE(DeathBlames(kRuns, Exit(128 + signal))) << signal;
  }
  EXPECT_FALSE(DeathBlames(Exit(0)));
  EXPECT_FALSE(DeathBlames(kRuns));
}

TEST(Blame, TheEndOfTheLauncherIsNoRequests) {
  for (const MemberEnd rank : {kRuns, kUnknown, Exit(1), Signal(SIGKILL)}) {
    EXPECT_FALSE(DeathBlames(rank, Signal(SIGKILL)));
    EXPECT_FALSE(DeathBlames(rank, Signal(SIGSEGV)));
  }
  EXPECT_TRUE(DeathBlames(Signal(SIGSEGV), Signal(SIGKILL)));  // a rank crashed by itself
}

TEST(Blame, AKillForMemoryBlamesRequestsWhomeverItHit) {
  for (const MemberEnd launcher : {kRuns, Signal(SIGKILL)}) {
    EXPECT_TRUE(BlamesRequests(
        Fault::kDied, {.launcher = launcher, .ranks = {Signal(SIGKILL)}, .out_of_memory = true}));
  }
}

TEST(Blame, MembersThatAreStoppedBlameNobodyAndOtherFaultsDo) {
  EXPECT_FALSE(BlamesRequests(Fault::kStopped, {}));
  EXPECT_FALSE(BlamesRequests(Fault::kStalled, {}));
  EXPECT_TRUE(BlamesRequests(Fault::kStuck, {}));
  EXPECT_TRUE(BlamesRequests(Fault::kSilent, {}));
  EXPECT_TRUE(BlamesRequests(Fault::kGarbage, {}));
}

}  // namespace
}  // namespace flotilla::worker
