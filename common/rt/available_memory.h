// How much more memory this process can take: what the machine has available, or what its control
// groups leave if that is less. The rule is a pure function of the files that the kernel writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flotilla {

// The text of the kernel's files; empty: there is no such file.
struct MemoryFiles {
  // A control group of the process, or one above it. The files are memory.max, .high, .current and
  // .stat of v2, or memory.limit_in_bytes, .usage_in_bytes and .stat of v1, which has no `high`.
  struct Cgroup {
    std::string name;  // e.g. "/user.slice/a.scope"; empty: the root of what the process sees
    std::string limit, high, usage, stat;
  };
  std::string meminfo;               // /proc/meminfo
  std::string overcommit;            // /proc/sys/vm/overcommit_memory
  std::vector<Cgroup> cgroups = {};  // all of them hold for the process
};

struct AvailableMemory {
  std::int64_t bytes = 0;  // at least 0
  std::string whose;       // what limits it: "this machine", or "the cgroup /user.slice/a.scope"
};

// The least of MemAvailable, of what may still be committed where the kernel does not overcommit,
// and of what each group's limits leave. Pages of files do not count as used, because the kernel
// takes them back. Swap is left out.
AvailableMemory AvailableMemoryOf(const MemoryFiles& files);

// Reads the files of this process: the controller of memory in v2 and v1, with every ancestor.
// `proc` and `cgroups` are where the kernel's file systems are mounted.
MemoryFiles ReadMemoryFiles(const std::string& proc = "/proc",
                            const std::string& cgroups = "/sys/fs/cgroup");

}  // namespace flotilla
