// Tests what the agent does when real processes die, hang or send nonsense: why and how soon it
// reports the group lost, that the group comes back by itself, and that nothing stays behind.
#include "worker/exec/process_executor.h"

#include <poll.h>
#include <sys/wait.h>

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rt/frames.h"
#include "tests/support/executor_recorder.h"
#include "tests/support/fake_executor.h"
#include "tests/support/fake_group.h"
#include "tests/support/plan_builder.h"
#include "worker/group/directory.h"
#include "worker/group/hosts.h"
#include "worker/group/proc.h"

namespace flotilla::worker {
namespace {

using testing::ExecutorRecorder;
using testing::FakeExecutorOptions;
using testing::FakeGroup;
using ::testing::HasSubstr;
using testing::Loopback;
using testing::PlanBuilder;
using testing::ScratchDirectory;

constexpr double kDetectSeconds = 2;

// Also knows when the group was lost last.
class Recorder final : public ExecutorRecorder {
 public:
  void OnLost(const Lost& lost) override {
    lost_ns = SteadyClock().NowNs();
    ExecutorRecorder::OnLost(lost);
  }
  std::atomic<std::int64_t> lost_ns{0};
};

// One sequence: a prompt, then decodes.
std::vector<StepPlan> Script(Epoch epoch) {
  PlanBuilder plans(epoch);
  OpenSequence open{.sequence = SequenceHandle(0), .tokens = {1, 2}, .prompt_tokens = 2};
  open.stop.max_tokens = 100;
  plans.Add(open);
  plans.Grant(SequenceHandle(0), {1});
  plans.Add(Run{.sequence = SequenceHandle(0), .count = 2, .sample = true});
  std::vector<StepPlan> script = {plans.Take()};
  for (int step = 2; step <= 3; ++step) script.push_back(plans.Take());
  return script;
}

class ProcessExecutorTest : public ::testing::Test {
 protected:
  ~ProcessExecutorTest() override {
    // No child is left, dead or alive. This includes the children of dead launchers.
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  }

  // Executes step `number` of `script` and waits for its result.
  static void RunStep(FakeGroup& group, Recorder& recorder, const std::vector<StepPlan>& script,
                      std::size_t number) {
    const std::size_t before = recorder.result_count();
    ASSERT_TRUE(group.executor().Execute(script[number - 1]).ok());
    recorder.WaitResult(before + 1);
  }

  static constexpr auto kDied = Lost::Cause::kDied, kStuck = Lost::Cause::kStuck;
  struct Case {
    const char* fault;
    Lost::Cause cause;
    const char* detail;
    double least_seconds, most_seconds;
  };
  // Each fault happens in a step of its own, on the first `ranks` ranks in turn.
  static void ExpectNoticed(FakeGroup& group, std::size_t ranks, const std::vector<Case>& cases) {
    Recorder recorder;
    ASSERT_TRUE(group.executor().Start(&recorder).ok());
    std::size_t number = 0;
    for (const Case& one : cases) {
      SCOPED_TRACE(one.fault);
      const std::size_t rank = number % ranks;
      const std::vector<StepPlan> script = Script(recorder.WaitReady(number + 1));
      RunStep(group, recorder, script, 1);
      group.AddFault(absl::StrCat("rank-", rank, "-step-2"), one.fault);
      const std::size_t results = recorder.result_count();
      const std::int64_t start = SteadyClock().NowNs();
      ASSERT_TRUE(group.executor().Execute(script[1]).ok());
      const Lost lost = recorder.WaitLost(++number);
      const double seconds = static_cast<double>(recorder.lost_ns - start) * 1e-9;
      std::printf("rank %zu, %s: lost after %.3f s: %s\n", rank, one.fault, seconds,
                  lost.detail.c_str());
      EXPECT_GE(seconds, one.least_seconds);
      EXPECT_LE(seconds, one.most_seconds);
      EXPECT_EQ(lost.cause, one.cause);
      EXPECT_THAT(lost.detail, HasSubstr(one.detail));
      EXPECT_THAT(lost.detail, HasSubstr(absl::StrCat("rank ", rank)));
      // Rank 0 may have answered before the loss of another rank was noticed. Then the step is
      // done.
      const bool answered = recorder.result_count() > results;
      EXPECT_TRUE(rank != 0 || !answered);
      EXPECT_EQ(lost.started, answered ? std::vector<Step>{} : std::vector<Step>{Step(2)});
    }
    RunStep(group, recorder, Script(recorder.WaitReady(number + 1)), 1);
    group.executor().Stop();  // before the recorder goes
  }
};

// A member is killed or stopped from outside, while the group is idle or has a plan.
TEST_F(ProcessExecutorTest, AnyMemberThatIsKilledOrStoppedIsNoticed) {
  FakeGroup group(2);
  Recorder recorder;
  ASSERT_TRUE(group.executor().Start(&recorder).ok());
  std::size_t losses = 0;
  for (const bool launcher : {false, true}) {
    for (const int signal : {SIGKILL, SIGTERM, SIGABRT, SIGSTOP}) {
      SCOPED_TRACE(absl::StrCat(launcher ? "mpirun" : "rank 1", " signal ", signal));
      const Epoch epoch = recorder.WaitReady(losses + 1);
      RunStep(group, recorder, Script(epoch), 1);
      const std::int64_t start = SteadyClock().NowNs();
      kill(launcher ? group.LauncherPid() : group.RankPid(1), signal);
      const Lost lost = recorder.WaitLost(++losses);
      const double seconds = static_cast<double>(recorder.lost_ns - start) * 1e-9;
      EXPECT_LE(seconds, kDetectSeconds);
      std::printf("%s, signal %d: lost after %.3f s: %s\n", launcher ? "mpirun" : "rank 1", signal,
                  seconds, lost.detail.c_str());
      EXPECT_EQ(lost.epoch, epoch);
      EXPECT_TRUE(lost.started.empty());
      const bool stopped = signal == SIGSTOP;
      EXPECT_EQ(lost.cause, stopped ? Lost::Cause::kStuck : Lost::Cause::kDied);
      if (stopped) {
        EXPECT_THAT(lost.detail, HasSubstr("is stopped"));
      }
      if (!launcher && (signal == SIGTERM || signal == SIGABRT)) {
        EXPECT_THAT(lost.detail, HasSubstr(absl::StrCat("rank 1 (pid ")));
        EXPECT_THAT(lost.detail, HasSubstr(absl::StrCat("signal ", signal)));
      }
    }
  }
  RunStep(group, recorder, Script(recorder.WaitReady(losses + 1)), 1);
  const auto& restarts = group.executor().group_probe().restarts;
  EXPECT_EQ(restarts[static_cast<std::size_t>(Fault::kDied)], 6u);
  EXPECT_EQ(restarts[static_cast<std::size_t>(Fault::kStopped)], 2u);
}

TEST_F(ProcessExecutorTest, TheLogNamesWhatTheRanksComputeOn) {
  FakeGroup group(2);
  Recorder recorder;
  ASSERT_TRUE(group.executor().Start(&recorder).ok());
  recorder.WaitReady(1);
  EXPECT_EQ(group.lines.Count("model loaded device=\"device 0, device 1\""), 1);
}

// A rank fails by itself in a step. This step is among those started.
TEST_F(ProcessExecutorTest, WhateverARankDoesInAStepIsNoticed) {
  FakeGroup group(3);
  ExpectNoticed(group, 3,
                {{"kill", kDied, "ended without a word", 0, kDetectSeconds},
                 {"exit", kDied, "exit code 3", 0, kDetectSeconds},
                 {"abort", kDied, "signal 6", 0, kDetectSeconds},
                 {"term", kDied, "signal 15", 0, kDetectSeconds},
                 {"close", kDied, "rank ", 0, kDetectSeconds},
                 {"garbage", kDied, "no message", 0, kDetectSeconds},
                 {"oversize", kDied, "4294967295 bytes", 0, kDetectSeconds},
                 {"stop", kStuck, "is stopped", 0, kDetectSeconds},
                 {"silent", kStuck, "no heartbeat for", 0.9, kDetectSeconds},
                 {"stuck", kStuck, "(running, step 2)", 2, 3}});
}

// Only an end that a request can have caused blames the requests of the steps that had started.
TEST_F(ProcessExecutorTest, ADeathBlamesRequestsOnlyIfARequestCanHaveCausedIt) {
  FakeGroup group(2);
  Recorder recorder;
  ASSERT_TRUE(group.executor().Start(&recorder).ok());
  const struct {
    const char* fault;
    bool blames;
  } cases[] = {{"kill", false}, {"term", false},    {"stop", false}, {"abort", true},
               {"exit", true},  {"segv", true},     {"bus", true},   {"fpe", true},
               {"ill", true},   {"overflow", true}, {"oom", true},   {"garbage", true},
               {"stuck", true}};
  std::size_t losses = 0;
  for (const auto& one : cases) {
    SCOPED_TRACE(one.fault);
    const std::vector<StepPlan> script = Script(recorder.WaitReady(losses + 1));
    group.AddFault("rank-0-step-1", one.fault);
    ASSERT_TRUE(group.executor().Execute(script[0]).ok());
    const Lost lost = recorder.WaitLost(++losses);
    EXPECT_EQ(lost.started, std::vector<Step>{Step(1)});
    EXPECT_EQ(lost.blames_requests, one.blames) << lost.detail;
  }
  group.executor().Stop();
}

// Whoever stops or kills mpirun, it is no request.
TEST_F(ProcessExecutorTest, WhatHappensToTheLauncherBlamesNoRequest) {
  FakeGroup group(2);
  Recorder recorder;
  ASSERT_TRUE(group.executor().Start(&recorder).ok());
  std::size_t losses = 0;
  for (const int signal : {SIGSTOP, SIGKILL, SIGTERM}) {
    SCOPED_TRACE(signal);
    const std::vector<StepPlan> script = Script(recorder.WaitReady(losses + 1));
    group.AddFault("rank-0-step-1", "stuck");  // the step lasts for 2 s
    ASSERT_TRUE(group.executor().Execute(script[0]).ok());
    group.AwaitTaken("rank-0-step-1");
    kill(group.LauncherPid(), signal);
    const Lost lost = recorder.WaitLost(++losses);
    EXPECT_EQ(lost.started, std::vector<Step>{Step(1)});
    EXPECT_FALSE(lost.blames_requests) << lost.detail;
  }
  group.executor().Stop();
}

// The agent knows a rank on another host only by its messages. It notices the same faults, and
// the step in which the rank died is among those started.
TEST_F(ProcessExecutorTest, RanksThatTalkByTcpAreWatchedToo) {
  FakeGroup group(2, Loopback());
  ExpectNoticed(group, 1,
                {{"kill", kDied, "closed its socket", 0, kDetectSeconds},
                 {"exit", kDied, "closed its socket", 0, kDetectSeconds},
                 {"abort", kDied, "closed its socket", 0, kDetectSeconds},
                 {"stop", kStuck, "no heartbeat for", 0.9, kDetectSeconds},
                 {"silent", kStuck, "no heartbeat for", 0.9, kDetectSeconds},
                 {"stuck", kStuck, "(running, step 2)", 2, 3}});
}

// A stranger reaches the agent's port from the network, without the token of this incarnation.
TEST_F(ProcessExecutorTest, StrangersAreNoRanks) {
  const ScratchDirectory temporary, faults;
  std::ofstream(faults.path() + "/rank-0-load") << "stuck\n";
  auto group = RankGroup::Launch({.command = {FLOTILLA_FAKE_RANK, "--faults", faults.path()},
                                  .ranks = 2,
                                  .temporary = temporary.path(),
                                  .hosts = Loopback()});
  ASSERT_TRUE(group.ok()) << group.status();
  const std::string hellos[] = {
      Frame(codec::Encode(codec::RankHello{.rank = 1, .size = 2, .token = "", .pid = 1})),
      Frame(codec::Encode(
          codec::RankHello{.rank = 1, .size = 2, .token = std::string(64, '0'), .pid = 1})),
      Frame(codec::Encode(codec::RankLoaded{})),
      std::string(10'000, 'x'),
      Frame(std::string(10'000, 'x')).substr(0, 9'000),  // the rest never comes
  };
  for (const std::string& hello : hellos) {
    auto stranger = ConnectTcp((*group)->agent());
    ASSERT_TRUE(stranger.ok()) << stranger.status();
    (void)WriteAll(stranger->get(), hello);
    FrameReader reader;
    absl::StatusOr<bool> read = true;
    const absl::Time limit = absl::Now() + absl::Seconds(30);
    while (read.ok() && absl::Now() < limit) {  // until the agent closes the connection
      (*group)->Wait(10);
      pollfd end{.fd = stranger->get(), .events = POLLIN, .revents = 0};
      if (poll(&end, 1, 0) > 0) read = reader.ReadFrom(stranger->get());
    }
    EXPECT_TRUE(absl::IsUnavailable(read.status())) << read.status();
  }
  EXPECT_NE((*group)->pid(1), 1);
}

TEST_F(ProcessExecutorTest, DescribesWhatAllRanksCanDo) {
  FakeGroup group(3);
  Recorder recorder;
  ASSERT_TRUE(group.executor().Start(&recorder).ok());
  recorder.WaitReady(1);
  ExecutorDescription expected = FakeExecutorOptions::DefaultDescription();
  expected.block_count -= 2;
  expected.decode_ns_per_step += 2;
  EXPECT_EQ(recorder.description(), expected);
  EXPECT_EQ(group.executor().probe().weight_bytes, 3000);
  for (const GroupProbe::Rank& rank : group.executor().group_probe().ranks) {
    EXPECT_TRUE(rank.up);
  }
}

TEST_F(ProcessExecutorTest, ARankThatCannotLoadEndsTheStart) {
  FakeGroup group(2);
  group.AddFault("rank-1-load", "refuse");
  Recorder recorder;
  const absl::Status started = group.executor().Start(&recorder);
  EXPECT_TRUE(absl::IsInvalidArgument(started)) << started;
  EXPECT_EQ(started.message(), "no such model");
  EXPECT_EQ(recorder.event_count(), 0u);
}

TEST_F(ProcessExecutorTest, ARankThatDiesWhileLoadingIsStartedAgain) {
  FakeGroup group(2);
  group.AddFault("rank-1-load", "kill");
  Recorder recorder;
  ASSERT_TRUE(group.executor().Start(&recorder).ok());
  RunStep(group, recorder, Script(recorder.WaitReady(1)), 1);
  EXPECT_EQ(group.lines.With("worker group lost").size(), 1u);
}

constexpr WatchOptions kHalfASecond = {.load_stall_ns = 500'000'000};

// Rank 1 hangs while it loads, on this host or on another one, and is stopped once besides.
TEST_F(ProcessExecutorTest, ARankThatHangsWhileItLoadsIsMissedAndStartedAgain) {
  for (const bool remote : {false, true}) {
    for (const char* fault : {"stuck", "stop"}) {
      SCOPED_TRACE(absl::StrCat(fault, remote ? " by TCP" : ""));
      FakeGroup group(2, remote ? std::optional(Loopback()) : std::nullopt, kHalfASecond);
      group.AddFault("rank-1-load", fault);
      Recorder recorder;
      ASSERT_TRUE(group.executor().Start(&recorder).ok());
      RunStep(group, recorder, Script(recorder.WaitReady(1)), 1);
      const std::vector<std::string> lost = group.lines.With("worker group lost");
      ASSERT_EQ(lost.size(), 1u);
      EXPECT_THAT(lost[0], HasSubstr("rank 1 (pid "));
      if (absl::string_view(fault) != "stuck") continue;
      EXPECT_THAT(lost[0], HasSubstr("cause=stalled"));
      EXPECT_THAT(lost[0], HasSubstr("has got no further with loading for 0."));
      EXPECT_THAT(lost[0], HasSubstr("in phase weights with 0 of 100 bytes"));
      const auto& restarts = group.executor().group_probe().restarts;
      EXPECT_EQ(restarts[static_cast<std::size_t>(Fault::kStalled)], 1u);
      group.executor().Stop();
    }
  }
}

// Rank 1 loads four times as long as a rank may stand still, and rank 0 waits for it.
TEST_F(ProcessExecutorTest, ALoadThatIsSlowButGetsFurtherIsLeftAlone) {
  for (const bool remote : {false, true}) {
    FakeGroup group(2, remote ? std::optional(Loopback()) : std::nullopt, kHalfASecond);
    group.AddFault("rank-0-load", "join");
    group.AddFault("rank-1-load", "slow");
    Recorder recorder;
    ASSERT_TRUE(group.executor().Start(&recorder).ok());
    RunStep(group, recorder, Script(recorder.WaitReady(1)), 1);
    EXPECT_TRUE(group.lines.With("worker group lost").empty());
    EXPECT_FALSE(group.executor().group_probe().ranks[1].loading);
    group.executor().Stop();
  }
}

TEST_F(ProcessExecutorTest, StopEndsAStartThatWouldTakeForEver) {
  FakeGroup group(2);
  group.AddFault("rank-1-load", "stuck");
  Recorder recorder;
  std::thread stopper([&] {
    const absl::Time limit = absl::Now() + absl::Minutes(1);
    while (!group.executor().group_probe().ranks[1].up && absl::Now() < limit) {
      std::this_thread::yield();
    }
    group.executor().Stop();
  });
  EXPECT_TRUE(absl::IsCancelled(group.executor().Start(&recorder)));
  stopper.join();
}

TEST_F(ProcessExecutorTest, NoLauncherEndsTheStart) {
  const ScratchDirectory temporary;
  const SteadyClock clock;
  Logger log(LogLevel::kError);
  Recorder recorder;
  ProcessExecutor executor({.group = {.command = {"true"},
                                      .launcher = "no-such-launcher",
                                      .temporary = temporary.path()},
                            .watch = {}},
                           &clock, &log);
  const absl::Status started = executor.Start(&recorder);
  EXPECT_TRUE(absl::IsNotFound(started)) << started;
  EXPECT_THAT(std::string(started.message()), HasSubstr("no-such-launcher"));
  EXPECT_TRUE(std::filesystem::is_empty(temporary.path()));
}

TEST_F(ProcessExecutorTest, WhatRanksPrintIsLogged) {
  FakeGroup group(2);
  group.AddFault("rank-1-step-1", "chatter");
  Recorder recorder;
  ASSERT_TRUE(group.executor().Start(&recorder).ok());
  RunStep(group, recorder, Script(recorder.WaitReady(1)), 1);
  const absl::Time limit = absl::Now() + absl::Seconds(30);
  while (group.lines.With("of many").size() < 2000 && absl::Now() < limit) {
    absl::SleepFor(absl::Milliseconds(10));
  }
  const std::vector<std::string> lines = group.lines.With("of many");
  ASSERT_EQ(lines.size(), 2000u);
  EXPECT_EQ(lines[1999], "printed by=\"rank 1\" line=\"line 1999 of many\"");
}

// The agent itself is killed, so nobody is left to kill its ranks.
TEST_F(ProcessExecutorTest, RanksEndWithTheirAgent) {
  const ScratchDirectory temporary, faults;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t agent = fork();
  if (agent == 0) {
    const SteadyClock clock;
    Logger log(LogLevel::kError);
    Recorder recorder;
    ProcessExecutor executor({.group = {.command = {FLOTILLA_FAKE_RANK, "--faults", faults.path()},
                                        .ranks = 2,
                                        .temporary = temporary.path()},
                              .watch = {}},
                             &clock, &log);
    if (executor.Start(&recorder).ok()) (void)!write(ready[1], "1", 1);
    while (true) pause();
  }
  close(ready[1]);
  char one = 0;
  ASSERT_EQ(read(ready[0], &one, 1), 1);
  close(ready[0]);
  const auto members = [&] { return ProcessesWithArguments({"--faults", faults.path()}); };
  EXPECT_EQ(members().size(), 3u);
  kill(agent, SIGKILL);
  waitpid(agent, nullptr, 0);
  const absl::Time limit = absl::Now() + absl::Seconds(5);
  while (!members().empty() && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(10));
  ASSERT_TRUE(members().empty());
  // This process has adopted them. A member has no arguments any more before its exit is complete,
  // so the wait blocks.
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  // The next agent that starts removes what such an agent leaves on disk, however soon it starts.
  const auto left = [&] {
    return std::distance(std::filesystem::directory_iterator(temporary.path()), {});
  };
  EXPECT_EQ(left(), 1);
  RemoveStaleDirectories(temporary.path());
  EXPECT_EQ(left(), 0);
}

TEST_F(ProcessExecutorTest, DirectoriesOfLiveAgentsAreNotStale) {
  FakeGroup group(1);
  Recorder recorder;
  ASSERT_TRUE(group.executor().Start(&recorder).ok());
  RemoveStaleDirectories(group.temporary());
  EXPECT_FALSE(std::filesystem::is_empty(group.temporary()));
  RunStep(group, recorder, Script(recorder.WaitReady(1)), 1);
}

}  // namespace
}  // namespace flotilla::worker
