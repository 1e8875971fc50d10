// Runs communicator_check with every Communicator between processes, in every shape.
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "worker/core/sharding.h"
#include "worker/group/directory.h"
#include "worker/group/launch.h"

namespace flotilla::worker {
namespace {

class CommunicatorTest : public ::testing::TestWithParam<std::tuple<std::string, ParallelShape>> {};

TEST_P(CommunicatorTest, WhatIsSentArrives) {
  const auto& [transport, shape] = GetParam();
  std::string directory = absl::StrCat(::testing::TempDir(), "/", kDirectoryPrefix, "XXXXXX");
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const auto launched =
      LaunchJob({.launcher = "mpirun",
                 .command = {FLOTILLA_COMMUNICATOR_CHECK, transport, absl::StrCat(shape.tensor),
                             absl::StrCat(shape.pipeline)},
                 .ranks = static_cast<int>(shape.ranks()),
                 .directory = directory,
                 .heartbeats = "none"});
  ASSERT_TRUE(launched.ok()) << launched.status();
  int status = 0;
  ASSERT_EQ(waitpid(*launched, &status, 0), *launched);
  std::ifstream log(absl::StrCat(directory, "/", kLauncherLog));
  EXPECT_EQ(status, 0) << std::string(std::istreambuf_iterator<char>(log), {});
  std::filesystem::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(
    Transports, CommunicatorTest,
    ::testing::Combine(::testing::Values("shared", "mpi"),
                       ::testing::Values(ParallelShape{2, 1}, ParallelShape{3, 1},
                                         ParallelShape{1, 2}, ParallelShape{1, 3},
                                         ParallelShape{2, 2})),
    [](const auto& info) {
      const ParallelShape shape = std::get<1>(info.param);
      return absl::StrCat(std::get<0>(info.param), "_tp", shape.tensor, "_pp", shape.pipeline);
    });

}  // namespace
}  // namespace flotilla::worker
