// OomKills: how many processes of a cgroup the kernel has killed because memory ran out. One
// thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace flotilla::worker {

// Where the kernel shows cgroups.
inline constexpr char kCgroupRoot[] = "/sys/fs/cgroup";

class OomKills {
 public:
  // Counts nothing.
  OomKills() = default;
  // Finds the counter of the cgroup in which process `pid` is: oom_kill in memory.events of its
  // cgroup v2 or of the nearest one above, or in memory.oom_control of v1. If the process has
  // neither, the counter is that of the whole machine (/proc/vmstat). `root` is where cgroups are
  // mounted.
  OomKills(pid_t pid, const std::string& root);

  // Whether the kernel has killed a process since this object was made.
  bool HaveRisen() const;

 private:
  std::string path_;  // empty: there is no counter
  std::int64_t before_ = 0;
};

}  // namespace flotilla::worker
