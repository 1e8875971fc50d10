// The files of killed agents are removed, and no other files.
#include "worker/group/directory.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/scratch_directory.h"

namespace flotilla::worker {
namespace {

namespace fs = std::filesystem;
using testing::ScratchDirectory;

std::ptrdiff_t Count(const std::string& path) {
  return std::distance(fs::directory_iterator(path), {});
}

TEST(GroupDirectoryTest, OneOfAKilledAgentGoesAtOnce) {
  const ScratchDirectory temporary;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t agent = fork();
  if (agent == 0) {
    const auto made = MakeGroupDirectory(temporary.path());
    std::ofstream(made->path + "/mpirun.log") << "text";
    fs::create_directory(made->path + "/ompi");
    (void)!write(ready[1], "1", 1);
    while (true) pause();
  }
  char one = 0;
  ASSERT_EQ(read(ready[0], &one, 1), 1);
  RemoveStaleDirectories(temporary.path());
  EXPECT_EQ(Count(temporary.path()), 1);  // it lives
  kill(agent, SIGKILL);
  waitpid(agent, nullptr, 0);
  RemoveStaleDirectories(temporary.path());
  EXPECT_EQ(Count(temporary.path()), 0);
  close(ready[0]);
  close(ready[1]);
}

TEST(GroupDirectoryTest, OthersThingsStay) {
  const ScratchDirectory temporary, elsewhere;
  const std::string begin = absl::StrCat(temporary.path(), "/", kDirectoryPrefix);
  std::ofstream(begin + "file") << "a file";
  fs::create_directory(elsewhere.path() + "/target");
  fs::create_directory_symlink(elsewhere.path() + "/target", begin + "link");
  fs::create_directory(temporary.path() + "/another");
  fs::create_directory(begin + "stale");
  fs::create_directory_symlink(elsewhere.path() + "/target", begin + "stale/link");
  std::ofstream(elsewhere.path() + "/target/file") << "a file";
  if (geteuid() == 0) {
    fs::create_directory(begin + "others");
    ASSERT_EQ(chown((begin + "others").c_str(), 12345, 12345), 0);
  }
  RemoveStaleDirectories(temporary.path());
  EXPECT_FALSE(fs::exists(begin + "stale"));
  EXPECT_TRUE(fs::exists(begin + "file"));
  EXPECT_TRUE(fs::exists(begin + "link"));
  EXPECT_TRUE(fs::exists(temporary.path() + "/another"));
  EXPECT_TRUE(fs::exists(elsewhere.path() + "/target/file"));
  EXPECT_EQ(fs::exists(begin + "others"), geteuid() == 0);
  RemoveStaleDirectories(temporary.path() + "/nowhere");
}

// Agents start, and each removes stale directories first. Other threads remove such directories all
// the time.
TEST(GroupDirectoryTest, OneThatWasMadeIsNeverTaken) {
  const ScratchDirectory temporary;
  std::atomic<bool> done{false};
  std::vector<std::thread> sweepers;
  for (int i = 0; i < 2; ++i) {
    sweepers.emplace_back([&] {
      while (!done) RemoveStaleDirectories(temporary.path());
    });
  }
  constexpr int kRounds = 300;
  for (int i = 0; i < kRounds; ++i) {
    const auto made = MakeGroupDirectory(temporary.path());
    EXPECT_TRUE(made.ok()) << made.status();
    if (!made.ok()) break;
    for (int look = 0; look < 10; ++look) {
      EXPECT_TRUE(fs::exists(made->path)) << "round " << i;
      std::this_thread::yield();
    }
    std::ofstream(made->path + "/file") << "a file";
    EXPECT_TRUE(fs::exists(made->path + "/file")) << "round " << i;
  }
  done = true;
  for (std::thread& sweeper : sweepers) sweeper.join();
  RemoveStaleDirectories(temporary.path());
  EXPECT_EQ(Count(temporary.path()), 0);
}

TEST(GroupDirectoryTest, NowhereToPutItIsSaid) {
  const ScratchDirectory temporary;
  const auto made = MakeGroupDirectory(temporary.path() + "/nowhere");
  EXPECT_TRUE(absl::IsUnavailable(made.status())) << made.status();
}

}  // namespace
}  // namespace flotilla::worker
