#include "cli/simulate.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/text_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flotilla::cli {
namespace {

using ::testing::HasSubstr;

// Parses as the program does. Returns the text of the error, or "" if there is none.
std::string Parse(std::vector<std::string> args, SimulateFlags* flags) {
  CLI::App app{"test", "test"};
  AddSimulateFlags(app, flags);
  std::reverse(args.begin(), args.end());  // CLI11 takes a vector from its back
  try {
    app.parse(args);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

// Returns an empty folder for this test alone.
std::string Folder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/simulate_test_" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

std::string Read(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadTextFile(path);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? *text : "";
}

absl::Status Simulate(std::vector<std::string> args) {
  SimulateFlags flags;
  EXPECT_EQ(Parse(std::move(args), &flags), "");
  return RunSimulate(flags);
}

TEST(SimulateTest, ARunLeavesItsReportAndPlots) {
  const std::string out = Folder("run"), again = Folder("again");
  ASSERT_EQ(Simulate({"--requests", "50", "--out", out}), absl::OkStatus());
  ASSERT_EQ(Simulate({"--requests", "50", "--out", again}), absl::OkStatus());
  for (const char* file : {"report.json", "report.csv", "requests.csv", "throughput.svg",
                           "queue.svg", "running.svg", "blocks.svg", "ttft.svg", "itl.svg"}) {
    const std::string text = Read(out + "/" + file);
    EXPECT_GT(text.size(), 100u) << file;
    EXPECT_EQ(text, Read(again + "/" + file)) << file;
  }
  EXPECT_THAT(Read(out + "/report.json"), HasSubstr("\"finished\": 50.0"));
}

TEST(SimulateTest, SweepsComparisonsAndBaselinesRun) {
  const std::string out = Folder("modes");
  EXPECT_EQ(Simulate({"--requests", "30", "--sweep-rate", "5,50", "--out", out}), absl::OkStatus());
  EXPECT_THAT(Read(out + "/report.csv"), HasSubstr("\n50/s,30"));
  EXPECT_THAT(Read(out + "/latency_throughput.svg"), HasSubstr("</svg>"));
  EXPECT_EQ(
      Simulate({"--requests", "60", "--sweep-rate", "5,50", "--policies",
                "priority,fcfs+fair_share", "--priorities", "2", "--tenants", "2", "--out", out}),
      absl::OkStatus());
  for (const char* classes : {"prompt", "priority", "tenant"}) {
    const std::string svg = Read(out + "/ttft_by_" + classes + ".svg");
    EXPECT_THAT(svg, HasSubstr("policy=fcfs+fair_share")) << classes;
    EXPECT_THAT(svg, HasSubstr("TTFT p99, ms")) << classes;
  }
  EXPECT_THAT(Read(out + "/report.json"), HasSubstr("\"name\": \"priority 1\""));
  EXPECT_EQ(Simulate({"--requests", "30", "--compare", "max_seqs=2,64", "--policies", "fcfs",
                      "--out", out}),
            absl::OkStatus());
  EXPECT_THAT(Read(out + "/report.csv"), HasSubstr("\nmax_seqs=64,30"));
  EXPECT_EQ(Simulate({"--requests", "30", "--memory-baselines", "--out", out}), absl::OkStatus());
  EXPECT_THAT(Read(out + "/report.csv"), HasSubstr("\noracle,30"));
  EXPECT_THAT(Read(out + "/memory.svg"), HasSubstr("</svg>"));
}

TEST(SimulateTest, ChatsOfMoreUsersWithAndWithoutATier) {
  const std::string out = Folder("chats");
  ASSERT_EQ(Simulate({"--arrivals", "closed", "--turns", "3", "--think", "0.1", "--requests", "40",
                      "--kv-tokens", "2000", "--compare", "host_tokens=0,20000",
                      "--sweep-concurrency", "2,8", "--out", out}),
            absl::OkStatus());
  EXPECT_THAT(Read(out + "/report.csv"), HasSubstr("\nhost_tokens=20000 8 users,40"));
  EXPECT_THAT(Read(out + "/load.svg"), HasSubstr(">users</text>"));
  EXPECT_THAT(Simulate({"--sweep-concurrency", "2"}).message(), HasSubstr("--arrivals closed"));
  EXPECT_THAT(Simulate({"--turns", "2"}).message(), HasSubstr("closed"));
  EXPECT_THAT(Simulate({"--arrivals", "closed", "--turns", "2", "--memory-baselines"}).message(),
              HasSubstr("--memory-baselines"));
}

TEST(SimulateTest, WindowsOfKvGroupsAreSimulated) {
  const std::string out = Folder("windows");
  const auto report = [&](const std::vector<std::string>& more) {
    std::vector<std::string> flags = {
        "--rate", "1000",   "--requests", "60", "--prompt-mean", "800", "--kv-tokens",
        "4000",   "--json", "--out",      out};
    flags.insert(flags.end(), more.begin(), more.end());
    EXPECT_EQ(Simulate(flags), absl::OkStatus());
    return Read(out + "/report.csv");
  };
  EXPECT_NE(report({}), report({"--kv-windows", "0,128,128,128"}));
}

TEST(SimulateTest, ATraceAndAMachineOfOnesOwn) {
  const std::string out = Folder("own");
  ASSERT_EQ(
      WriteTextFile(out, "trace.csv", "arrival_s,prompt_tokens,output_tokens\n0,10,5\n0.5,10,5\n"),
      absl::OkStatus());
  ASSERT_EQ(WriteTextFile(out, "m.json", R"({"kind":"linear","step_ns":1000000})"),
            absl::OkStatus());
  EXPECT_EQ(Simulate({"--machine", out + "/m.json", "--trace", out + "/trace.csv", "--out", out}),
            absl::OkStatus());
  EXPECT_THAT(Read(out + "/requests.csv"), HasSubstr("0.500000000,0.501000000,0.505000000,10,5"));
}

TEST(SimulateTest, AFitBecomesAMachine) {
  const std::string out = Folder("fit");
  std::string csv = "prefill_rows,decode_rows,prefill_context,decode_context,ns\n";
  for (int rows = 1; rows < 20; ++rows) {
    csv += "0," + std::to_string(rows) + ",0,0," + std::to_string(5000 + 100 * rows) + "\n";
  }
  ASSERT_EQ(WriteTextFile(out, "steps.csv", csv), absl::OkStatus());
  ASSERT_EQ(Simulate({"--fit", out + "/steps.csv", "--out", out}), absl::OkStatus());
  EXPECT_EQ(Simulate({"--machine", out + "/machine.json", "--requests", "5"}), absl::OkStatus());
}

TEST(SimulateTest, WhatDoesNotExistIsNamed) {
  EXPECT_THAT(Simulate({"--machine", "tpu"}).message(), HasSubstr("no machine named \"tpu\""));
  EXPECT_THAT(Simulate({"--preset", "tall"}).message(), HasSubstr("no preset named"));
  EXPECT_THAT(Simulate({"--trace", "/no/such"}).message(), HasSubstr("cannot open /no/such"));
  EXPECT_THAT(Simulate({"--set", "max_seqs=x"}).message(), HasSubstr("max_seqs"));
  EXPECT_THAT(Simulate({"--kv-tokens", "3"}).message(), HasSubstr("--kv-tokens"));
  EXPECT_THAT(Simulate({"--kv-windows", "0,1,2,3,4,5,6,7,8"}).message(),
              HasSubstr("--kv-windows has 9 KV groups; the most are 8"));
  EXPECT_THAT(Simulate({"--kv-windows", "0,512", "--kv-tokens", "1073741824"}).message(),
              HasSubstr("--kv-tokens and --host-tokens are at most 536870912"));
  EXPECT_THAT(Simulate({"--out", "/dev/null/x", "--requests", "1"}).message(),
              HasSubstr("cannot write"));
  EXPECT_THAT(Simulate({"--measure", "m.gguf"}).message(), HasSubstr("--out"));
  EXPECT_EQ(Simulate({"--measure", "/no/such", "--out", "x"}).code(), absl::StatusCode::kNotFound);
}

TEST(SimulateTest, ValuesOutsideTheBoundsAreRefused) {
  SimulateFlags flags;
  EXPECT_THAT(Parse({"--rate", "0"}, &flags), HasSubstr("--rate"));
  EXPECT_THAT(Parse({"--requests", "0"}, &flags), HasSubstr("--requests"));
  EXPECT_THAT(Parse({"--arrivals", "sometimes"}, &flags), HasSubstr("--arrivals"));
  EXPECT_THAT(Parse({"--sweep-rate", "1,-1"}, &flags), HasSubstr("--sweep-rate"));
  EXPECT_NE(Parse({"--speed", "11"}, &flags), "");
  EXPECT_EQ(Parse({"--sweep-rate", "1,2"}, &flags), "");
  EXPECT_THAT(flags.sweep_rate, ::testing::ElementsAre(1, 2));
}

}  // namespace
}  // namespace flotilla::cli
