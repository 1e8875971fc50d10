// Tests processes that one host runs for another. The calls use real gRPC, and a shell takes the
// place of orted.
#include "worker/hosts/host_server.h"

#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/obs/log.h"
#include "worker/group/proc.h"
#include "worker/hosts/daemons.h"
#include "worker/hosts/run_on_host.h"

namespace flotilla::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HostServerTest : public ::testing::Test {
 protected:
  explicit HostServerTest(const std::string& program = "sh") {
    auto started = HostServer::Start({.listen = {}, .program = program}, &log_);
    EXPECT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }

  RunOnHostOptions Shell(const std::string& script) const {
    return {.address = absl::StrCat("127.0.0.1:", server_->port()), .arguments = {"-c", script}};
  }
  // Runs `script`, which prints its pid in a line and goes on. Ends the call when the line has
  // come.
  pid_t PidOf(const std::string& script, absl::StatusOr<int>* end) const {
    std::string output;
    RunOnHostOptions options = Shell(script);
    options.on_output = [&output](std::string_view more) {
      output += more;
      return output.find('\n') == std::string::npos;
    };
    *end = RunOnHost(options);
    return std::atoi(output.c_str());
  }

  Logger log_{LogLevel::kError};
  std::unique_ptr<HostServer> server_;
};

// Whether the process ends within 5 s. The server looks every 50 ms, and waits a second before it
// kills.
bool Ends(pid_t pid) {
  for (int i = 0; i < 500; ++i) {
    if (ProcessState(pid) == 'X') return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

TEST_F(HostServerTest, TellsWhatIsPrintedAndHowItEnds) {
  std::string output;
  RunOnHostOptions options = Shell("echo out; echo err >&2; exit 3");
  options.on_output = [&output](std::string_view more) {
    output += more;
    return true;
  };
  const absl::StatusOr<int> code = RunOnHost(options);
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(*code, 3);
  EXPECT_EQ(output, "out\nerr\n");
  EXPECT_EQ(*RunOnHost(Shell("kill -9 $$")), 128 + SIGKILL);
  // The process closes its output and lives on. The server must neither spin nor end the call.
  EXPECT_EQ(*RunOnHost(Shell("exec >&- 2>&-; sleep 0.2; exit 4")), 4);
}

TEST_F(HostServerTest, MuchOutputComesWhole) {
  std::size_t bytes = 0;
  RunOnHostOptions options = Shell("head -c 1000000 /dev/zero");
  options.on_output = [&bytes](std::string_view more) {
    bytes += more.size();
    return true;
  };
  EXPECT_EQ(*RunOnHost(options), 0);
  EXPECT_EQ(bytes, 1000000u);
}

TEST_F(HostServerTest, ItEndsWithItsCall) {
  absl::StatusOr<int> end = 0;
  const pid_t obedient = PidOf("echo $$; sleep 1000", &end);
  EXPECT_TRUE(absl::IsCancelled(end.status())) << end.status();
  const pid_t stubborn = PidOf("trap '' TERM; echo $$; sleep 1000; sleep 1000", &end);
  const pid_t stopped = PidOf("echo $$; kill -STOP $$", &end);
  for (const pid_t pid : {obedient, stubborn, stopped}) {
    ASSERT_GT(pid, 0);
    EXPECT_TRUE(Ends(pid)) << pid;
  }
}

TEST_F(HostServerTest, ItEndsWithItsHost) {
  pid_t pid = 0;
  absl::Notification started;
  absl::StatusOr<int> end = 0;
  std::thread caller([&] {
    RunOnHostOptions options = Shell("echo $$; sleep 1000");
    options.on_output = [&](std::string_view output) {
      pid = std::atoi(std::string(output).c_str());
      started.Notify();
      return true;
    };
    end = RunOnHost(options);
  });
  started.WaitForNotification();
  server_->Stop();
  caller.join();
  EXPECT_FALSE(end.ok());
  EXPECT_EQ(ProcessState(pid), 'X');
}

TEST_F(HostServerTest, RefusesWhatIsTooMuch) {
  RunOnHostOptions many = Shell("exit 0");
  many.arguments.resize(Daemons::kMaxArguments + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(RunOnHost(many).status()));
  RunOnHostOptions large = Shell(std::string(Daemons::kMaxArgumentBytes, 'x'));
  const absl::StatusOr<int> refused = RunOnHost(large);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
  EXPECT_THAT(refused.status().message(), HasSubstr("65536"));

  std::vector<std::thread> callers;
  absl::Mutex mu;
  std::size_t running = 0;
  bool enough = false;
  for (std::size_t i = 0; i < Daemons::kMaxDaemons; ++i) {
    callers.emplace_back([&] {
      RunOnHostOptions options = Shell("while :; do echo; sleep 0.05; done");
      bool counted = false;
      options.on_output = [&](std::string_view) {
        absl::MutexLock lock(&mu);
        if (!std::exchange(counted, true)) ++running;
        return !enough;
      };
      EXPECT_TRUE(absl::IsCancelled(RunOnHost(options).status()));
    });
  }
  {
    absl::MutexLock lock(&mu);
    const auto all = [&] { return running == Daemons::kMaxDaemons; };
    mu.Await(absl::Condition(&all));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(RunOnHost(Shell("exit 0")).status()));
  {
    absl::MutexLock lock(&mu);
    enough = true;
  }
  for (std::thread& caller : callers) caller.join();
}

class NoProgramTest : public HostServerTest {
 protected:
  NoProgramTest() : HostServerTest("no-such-program") {}
};

TEST_F(NoProgramTest, SaysWhich) {
  const absl::StatusOr<int> end = RunOnHost(Shell("exit 0"));
  EXPECT_TRUE(absl::IsNotFound(end.status()));
  EXPECT_THAT(end.status().message(), HasSubstr("no-such-program"));
}

TEST(RunOnHostTest, NobodyAnswers) {
  const absl::StatusOr<int> end =
      RunOnHost({.address = "127.0.0.1:1", .patience = absl::Milliseconds(200)});
  EXPECT_TRUE(absl::IsUnavailable(end.status()));
  EXPECT_THAT(end.status().message(), HasSubstr("127.0.0.1:1"));
}

TEST(DaemonArgumentsTest, AreWhatAShellWouldMakeOfThem) {
  // These are the words of Open MPI 4.1.
  const auto arguments = DaemonArguments(
      {" orted", "-mca", "ess", "\"env\"", "-mca", "orte_node_regex", "\"vm,[2:10].9.8.7@0(2)\"",
       "-mca", "orte_hnp_uri", "\"19.0;tcp://127.0.0.1:36779\"", "--tree-spawn"});
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_THAT(*arguments,
              ElementsAre("-mca", "ess", "env", "-mca", "orte_node_regex", "vm,[2:10].9.8.7@0(2)",
                          "-mca", "orte_hnp_uri", "19.0;tcp://127.0.0.1:36779", "--tree-spawn"));
  EXPECT_TRUE(DaemonArguments({"/usr/bin/orted"}).ok());
}

TEST(DaemonArgumentsTest, NeedNoShell) {
  const std::vector<std::vector<std::string>> refused = {
      {},
      {""},
      {"sh", "-c", "x"},
      {"orted-not"},
      {"PATH=/opt/bin:$PATH", ";", "export", "PATH", ";", "/opt/bin/orted"},
      {"orted", "a;b"},
      {"orted", "`id`"},
      {"orted", "\"$(id)\""},
      {"orted", "\"a\"b\""},
      {"orted", "a b"},
      {"orted", "'a'"},
      {"orted", "x\ny"},
  };
  for (const auto& words : refused) {
    EXPECT_TRUE(absl::IsInvalidArgument(DaemonArguments(words).status()))
        << ::testing::PrintToString(words);
  }
}

}  // namespace
}  // namespace flotilla::worker
