#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/exec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla::cli {
namespace {

using ::testing::HasSubstr;

// Parses as the program does. Returns the text of the error, or "" if there is none.
std::string Parse(std::vector<std::string> args, RoleFlags* flags, Role role = Role::kServe) {
  CLI::App app{"test", "test"};
  AddRoleFlags(app, role, flags);
  std::reverse(args.begin(), args.end());  // CLI11 takes a vector from its back
  try {
    app.parse(args);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(FlagsTest, DefaultsThatOthersRelyOn) {
  RoleFlags flags;
  ASSERT_EQ(Parse({"--model", "m.gguf"}, &flags), "");
  EXPECT_EQ(flags.model, "m.gguf");
  EXPECT_EQ(flags.host, "127.0.0.1");
  EXPECT_EQ(flags.http_port, 8080);
  EXPECT_EQ(flags.grpc_port, 50051);
  EXPECT_EQ(flags.compute, "accurate");
  EXPECT_EQ(flags.kv_type, "bf16");
  EXPECT_EQ(flags.kv_blocks, 0);
  EXPECT_EQ(flags.block_tokens, 16);
  EXPECT_EQ(flags.max_batch_tokens, 256);
  EXPECT_EQ(flags.max_chunk_tokens, 256);
  EXPECT_EQ(flags.max_seqs, 64);
  EXPECT_EQ(flags.queue_tokens, 0);  // the engine chooses
  EXPECT_EQ(flags.cpu_isa, "auto");
  EXPECT_EQ(flags.device, "auto");
  EXPECT_FALSE(flags.permissive);
}

TEST(FlagsTest, RunHasTheFlagsOfTheEngineAndNoneOfClients) {
  RoleFlags flags;
  ASSERT_EQ(Parse({"--model", "m", "--kv-blocks", "9", "--max-seqs", "3", "--policy", "srpt"},
                  &flags, Role::kRun),
            "");
  EXPECT_EQ(flags.kv_blocks, 9);
  for (const char* flag : {"--http-port", "--host", "--api-keys-file", "--queue-requests",
                           "--itl-target-ms", "--fair-share", "--ready-file"}) {
    EXPECT_THAT(Parse({"--model", "m", flag, "1"}, &flags, Role::kRun), HasSubstr(flag));
  }
}

TEST(FlagsTest, EveryKindOfFlagIsRead) {
  RoleFlags flags;
  ASSERT_EQ(Parse({"--model=m", "--http-port=0", "--kv-type", "fp32", "--permissive"}, &flags), "");
  EXPECT_EQ(flags.http_port, 0);
  EXPECT_EQ(flags.kv_type, "fp32");
  EXPECT_TRUE(flags.permissive);
}

TEST(FlagsTest, ValuesOutsideTheBoundsAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"--http-port", "65536"},    {"--speculation", "eagle"},
      {"--draft-tokens", "0"},     {"--http-port", "-1"},
      {"--http-port", "http"},     {"--kv-blocks", "-1"},
      {"--block-tokens", "32"},    {"--max-batch-tokens", "0"},
      {"--threads", "9999999999"}, {"--kv-type", "int3"},
      {"--quantize", "int3"},      {"--cpu-isa", "neon"},
      {"--compute", "sloppy"},     {"--kv-blocks", "99999999999999999999"},
  };
  for (const auto& [name, value] : bad) {
    RoleFlags flags;
    EXPECT_THAT(Parse({"--model", "m", name, value}, &flags), HasSubstr(name)) << value;
  }
}

TEST(FlagsTest, UnknownFlagsAndAMissingModelAreRefused) {
  RoleFlags flags;
  EXPECT_THAT(Parse({"--model", "m", "--gpu"}, &flags), HasSubstr("--gpu"));
  EXPECT_THAT(Parse({}, &flags), HasSubstr("--model"));
}

TEST(FlagsTest, SchedulersAreAsManyAsAreNamed) {
  RoleFlags flags;
  ASSERT_EQ(Parse({"--scheduler", "a:1", "--permissive", "--scheduler=dns:///b:2"}, &flags,
                  Role::kRouter),
            "");
  EXPECT_EQ(flags.schedulers, (std::vector<std::string>{"a:1", "dns:///b:2"}));
  RoleFlags none;
  EXPECT_THAT(Parse({}, &none, Role::kRouter), HasSubstr("--scheduler"));
  EXPECT_THAT(Parse({"--scheduler", "a:1", "b:2"}, &none, Role::kRouter), HasSubstr("b:2"))
      << "one value each time";
}

TEST(FlagsTest, ASchedulerIsToldWhereItsGroupIsOrRunsIt) {
  RoleFlags remote;
  ASSERT_EQ(Parse({"--worker", "w:1", "--max-seqs", "9"}, &remote, Role::kScheduler), "");
  EXPECT_EQ(remote.worker, "w:1");
  RoleFlags own;
  ASSERT_EQ(Parse({"--model", "m.gguf", "--tp", "2", "--launcher=none"}, &own, Role::kScheduler),
            "");
  EXPECT_EQ(own.model, "m.gguf");
  EXPECT_EQ(own.tensor_parallel, 2);
  RoleFlags both;
  EXPECT_THAT(Parse({"--worker", "w:1", "--model", "m"}, &both, Role::kScheduler),
              HasSubstr("--worker"));
  // Flags of the worker group belong to the process that runs the group.
  RoleFlags elsewhere;
  EXPECT_THAT(Parse({"--worker", "w:1", "--tp", "2"}, &elsewhere, Role::kScheduler),
              HasSubstr("--model"));
}

TEST(FlagsTest, HostsNeedTheirNetwork) {
  RoleFlags flags;
  EXPECT_THAT(Parse({"--model", "m", "--hostfile", "h"}, &flags, Role::kWorker),
              HasSubstr("--group-network"));
  RoleFlags all;
  ASSERT_EQ(Parse({"--model", "m", "--hostfile", "h", "--group-network", "10.0.0.0/8"}, &all,
                  Role::kWorker),
            "");
  EXPECT_EQ(all.group_network, "10.0.0.0/8");
}

TEST(FlagsTest, HostsAreNamedAndReachedInOneWay) {
  const std::vector<std::string> base = {"--model", "m", "--group-network", "10.0.0.0/8"};
  const auto with = [&](std::vector<std::string> more, RoleFlags* flags) {
    more.insert(more.begin(), base.begin(), base.end());
    return Parse(std::move(more), flags, Role::kWorker);
  };
  RoleFlags flags;
  ASSERT_EQ(with({"--hosts", "a,b:2", "--hosts-port", "7003"}, &flags), "");
  EXPECT_EQ(flags.hosts, "a,b:2");
  EXPECT_EQ(flags.hosts_port, 7003);
  RoleFlags both;
  EXPECT_THAT(with({"--hosts", "a", "--hostfile", "h"}, &both), HasSubstr("--hostfile"));
  RoleFlags two;
  EXPECT_THAT(with({"--hosts-port", "1", "--remote-shell", "s"}, &two),
              HasSubstr("--remote-shell"));
}

// `flotilla exec` takes its flags from the environment. All its words belong to mpirun, even words
// that look like flags.
TEST(FlagsTest, WhatMpirunSaysIsNoFlag) {
  RoleFlags worker;
  worker.hosts_port = 7003;
  worker.fleet_secret_file = "/etc/a secret";
  for (const auto& [name, value] : ExecEnvironment(worker)) setenv(name.c_str(), value.c_str(), 1);
  CLI::App app{"test", "test"};
  CLI::App* exec = app.add_subcommand("exec");
  RoleFlags flags;
  AddExecFlags(*exec, &flags);
  const std::vector<std::string> words = {"host", "orted", "-mca", "x", "--port", "9", "--help"};
  std::vector<std::string> args = words;
  args.insert(args.begin(), "exec");
  std::reverse(args.begin(), args.end());
  ASSERT_NO_THROW(app.parse(args));
  for (const auto& [name, value] : ExecEnvironment(worker)) unsetenv(name.c_str());
  EXPECT_EQ(flags.hosts_port, 7003);
  EXPECT_EQ(flags.fleet_secret_file, "/etc/a secret");
  EXPECT_EQ(exec->remaining(), words);
}

TEST(FlagsTest, HelpShowsUnitsBoundsAndDefaults) {
  CLI::App app{"test", "test"};
  RoleFlags flags;
  AddRoleFlags(app, Role::kServe, &flags);
  const std::string help = app.help();
  EXPECT_THAT(help, HasSubstr("--kv-blocks blocks"));
  EXPECT_THAT(help, HasSubstr("[0..67108864, default 0]"));
  EXPECT_THAT(help, HasSubstr("auto|reference|avx2|avx512"));
}

// A rank gets the same values from its arguments as its worker got from the flags.
TEST(FlagsTest, ARankGetsTheFlagsOfItsWorker) {
  RoleFlags worker;
  worker.model = "a model.gguf";
  worker.kv_type = "fp32";
  worker.kv_value_type = "int8";
  worker.kv_layers = "0-1=bf16";
  worker.quantize = "nf4";
  worker.kv_blocks = 77;
  worker.tensor_parallel = 3;
  worker.draft_layers = 5;
  worker.grammar_cpu_ms = 700;
  worker.disk_directory = "/var/x";
  std::vector<std::string> words = RankArguments(worker);
  words.insert(words.end(), {"--group-dir", "d", "--heartbeats", "h"});
  RoleFlags rank;
  CLI::App app{"test", "test"};
  AddRoleFlags(app, Role::kRank, &rank);
  std::reverse(words.begin(), words.end());
  ASSERT_NO_THROW(app.parse(words));
  EXPECT_EQ(rank.model, "a model.gguf");
  EXPECT_EQ(rank.kv_type, "fp32");
  EXPECT_EQ(rank.kv_value_type, "int8");
  EXPECT_EQ(rank.kv_layers, "0-1=bf16");
  EXPECT_EQ(rank.quantize, "nf4");
  EXPECT_EQ(rank.kv_blocks, 77);
  EXPECT_EQ(rank.tensor_parallel, 3);
  EXPECT_EQ(rank.draft_layers, 5);
  EXPECT_EQ(rank.grammar_cpu_ms, 700);
  EXPECT_EQ(rank.disk_directory, "/var/x");
  EXPECT_EQ(rank.group_directory, "d");
  EXPECT_EQ(RankArguments(rank), RankArguments(worker));
}

}  // namespace
}  // namespace flotilla::cli
