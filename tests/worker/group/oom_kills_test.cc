// Tests that kills for memory are found where the kernel shows them.
#include "worker/group/oom_kills.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/scratch_directory.h"

namespace flotilla::worker {
namespace {

using testing::ScratchDirectory;

void Write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

// The process's cgroup is some folder below the root, whose name the test need not know: the
// counter is looked for upwards, too.
TEST(OomKillsTest, CountsInVersionTwo) {
  const ScratchDirectory root;
  const std::string events = root.path() + "/memory.events";
  Write(events, "low 0\nhigh 3\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n");
  const OomKills kills(getpid(), root.path());
  EXPECT_FALSE(kills.HaveRisen());
  Write(events, "low 0\nhigh 3\nmax 11\noom 2\noom_kill 1\noom_group_kill 0\n");
  EXPECT_FALSE(kills.HaveRisen());
  Write(events, "low 0\nhigh 3\nmax 11\noom 3\noom_kill 2\noom_group_kill 1\n");
  EXPECT_TRUE(kills.HaveRisen());
}

TEST(OomKillsTest, WithoutACgroupTheMachineCounts) {
  const ScratchDirectory root;
  EXPECT_FALSE(OomKills(getpid(), root.path()).HaveRisen());
  EXPECT_FALSE(OomKills().HaveRisen());
}

TEST(OomKillsTest, ACounterThatGoesAwayIsNoKill) {
  const ScratchDirectory root;
  Write(root.path() + "/memory.events", "oom_kill 1\n");
  const OomKills kills(getpid(), root.path());
  std::filesystem::remove(root.path() + "/memory.events");
  EXPECT_FALSE(kills.HaveRisen());
  Write(root.path() + "/memory.events", "nonsense");
  EXPECT_FALSE(kills.HaveRisen());
}

}  // namespace
}  // namespace flotilla::worker
