#include "worker/group/oom_kills.h"

#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace flotilla::worker {
namespace {

// The value of the line "oom_kill N" of a file; none if it has no such line.
std::optional<std::int64_t> ReadCount(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  std::int64_t value = 0;
  while (file >> name >> value) {
    if (name == "oom_kill") return value;
  }
  return std::nullopt;
}

// Adds `name` in the cgroup's folder and in each folder above, up to `root`.
void AddUpwards(const std::string& root, std::string cgroup, const char* name,
                std::vector<std::string>* paths) {
  while (true) {
    paths->push_back(absl::StrCat(root, cgroup, "/", name));
    const std::size_t slash = cgroup.rfind('/');
    if (cgroup.empty() || slash == std::string::npos) return;
    cgroup.resize(slash);
  }
}

// The files that may have the counter, the best one first.
std::vector<std::string> Candidates(pid_t pid, const std::string& root) {
  std::vector<std::string> paths;
  std::ifstream file(absl::StrCat("/proc/", pid, "/cgroup"));
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[0] == "0" && fields[1].empty()) {
      AddUpwards(root, fields[2], "memory.events", &paths);
      AddUpwards(absl::StrCat(root, "/unified"), fields[2], "memory.events", &paths);
    }
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    for (const absl::string_view controller : controllers) {
      if (controller != "memory") continue;
      AddUpwards(absl::StrCat(root, "/memory"), fields[2], "memory.oom_control", &paths);
    }
  }
  paths.push_back("/proc/vmstat");
  return paths;
}

}  // namespace

OomKills::OomKills(pid_t pid, const std::string& root) {
  for (std::string& path : Candidates(pid, root)) {
    const std::optional<std::int64_t> count = ReadCount(path);
    if (!count.has_value()) continue;
    path_ = std::move(path);
    before_ = *count;
    return;
  }
}

bool OomKills::HaveRisen() const {
  if (path_.empty()) return false;
  const std::optional<std::int64_t> count = ReadCount(path_);
  return count.has_value() && *count > before_;
}

}  // namespace flotilla::worker
