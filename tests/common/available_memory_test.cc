#include "common/rt/available_memory.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/scratch_directory.h"

namespace flotilla {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
// 8 GiB available; 4 GiB may still be committed.
constexpr char kMeminfo[] =
    "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n"
    "CommitLimit:     8388608 kB\nCommitted_AS:    4194304 kB\n";

MemoryFiles Machine(std::vector<MemoryFiles::Cgroup> cgroups = {}) {
  return {.meminfo = kMeminfo, .overcommit = "0\n", .cgroups = std::move(cgroups)};
}

TEST(AvailableMemoryTest, WithoutGroupsItIsWhatTheMachineHas) {
  const AvailableMemory memory = AvailableMemoryOf(Machine());
  EXPECT_EQ(memory.bytes, 8192 * kMiB);
  EXPECT_EQ(memory.whose, "this machine");
}

TEST(AvailableMemoryTest, AKernelThatDoesNotOvercommitIsAskedWhatMayBeCommitted) {
  MemoryFiles files = Machine();
  files.overcommit = "2\n";
  EXPECT_EQ(AvailableMemoryOf(files).bytes, 4096 * kMiB);
}

TEST(AvailableMemoryTest, TheLeastOfAllLimitsCountsAndPagesOfFilesAreNotUsed) {
  const MemoryFiles::Cgroup unlimited{
      .name = "/a/b/c", .limit = "max\n", .high = "max\n", .usage = "1073741824\n"};
  // 2 GiB, of which 1 GiB is used and half of that by files.
  const MemoryFiles::Cgroup pod{.name = "/a/b",
                                .limit = "2147483648\n",
                                .high = "max\n",
                                .usage = "1073741824\n",
                                .stat = "anon 5\ninactive_file 268435456\nactive_file 268435456\n"};
  const MemoryFiles::Cgroup large{.name = "/a", .limit = "4294967296\n", .usage = "0\n"};
  const AvailableMemory memory = AvailableMemoryOf(Machine({unlimited, pod, large}));
  EXPECT_EQ(memory.bytes, 1536 * kMiB);
  EXPECT_EQ(memory.whose, "the cgroup /a/b");
  MemoryFiles::Cgroup slowed = pod;
  slowed.high = "1610612736\n";
  EXPECT_EQ(AvailableMemoryOf(Machine({slowed})).bytes, 1024 * kMiB);
}

TEST(AvailableMemoryTest, GroupsOfVersion1CountThoseBelowThem) {
  const MemoryFiles::Cgroup group{
      .limit = "2147483648\n",
      .usage = "2147483648\n",
      .stat =
          "inactive_file 1\nactive_file 1\ntotal_inactive_file 1048576\n"
          "total_active_file 2097152\n"};
  const AvailableMemory memory = AvailableMemoryOf(Machine({group}));
  EXPECT_EQ(memory.bytes, 3 * kMiB);
  EXPECT_EQ(memory.whose, "the cgroup /");
  // What v1 says where there is no limit.
  const MemoryFiles::Cgroup none{.limit = "9223372036854771712\n", .usage = "5\n"};
  EXPECT_EQ(AvailableMemoryOf(Machine({none})).bytes, 8192 * kMiB);
}

TEST(AvailableMemoryTest, ThereIsNeverLessThanNothing) {
  const MemoryFiles::Cgroup full{.limit = "1048576\n", .usage = "2097152\n"};
  EXPECT_EQ(AvailableMemoryOf(Machine({full})).bytes, 0);
  EXPECT_EQ(AvailableMemoryOf({}).bytes, 0);
}

TEST(AvailableMemoryTest, TheFilesOfEveryAncestorAreRead) {
  const testing::ScratchDirectory directory;
  const auto write = [&](const std::string& path, const std::string& text) {
    const std::filesystem::path file = std::filesystem::path(directory.path()) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  };
  write("proc/meminfo", kMeminfo);
  write("proc/sys/vm/overcommit_memory", "1\n");
  write("proc/self/cgroup", "4:cpu,memory:/docker/x\n3:cpuset:/\n0::/a/b\n");
  write("cgroup/a/b/memory.max", "max\n");
  write("cgroup/a/b/memory.current", "10\n");
  write("cgroup/a/memory.max", "3221225472\n");
  write("cgroup/a/memory.high", "2147483648\n");
  write("cgroup/a/memory.current", "1048576\n");
  write("cgroup/a/memory.stat", "inactive_file 1048576\n");
  // The mount point of a container is its own group, whatever the path of the group is.
  write("cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  write("cgroup/memory/memory.usage_in_bytes", "0\n");
  const std::string proc = directory.path() + "/proc";
  const std::string cgroups = directory.path() + "/cgroup";
  MemoryFiles files = ReadMemoryFiles(proc, cgroups);
  ASSERT_EQ(files.cgroups.size(), 3);
  EXPECT_EQ(AvailableMemoryOf(files).bytes, 1024 * kMiB);
  files.cgroups.erase(files.cgroups.begin());
  EXPECT_EQ(AvailableMemoryOf(files).bytes, 2048 * kMiB);
  EXPECT_EQ(AvailableMemoryOf(files).whose, "the cgroup /a");
}

TEST(AvailableMemoryTest, ThisMachineHasSome) {
  EXPECT_GT(AvailableMemoryOf(ReadMemoryFiles()).bytes, 0);
}

}  // namespace
}  // namespace flotilla
