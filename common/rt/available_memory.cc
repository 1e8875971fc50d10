#include "common/rt/available_memory.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace flotilla {
namespace {

// A number of bytes that is alone in a file; none: "max", or something else.
std::optional<std::int64_t> NumberOf(absl::string_view text) {
  std::int64_t number = 0;
  if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(text), &number)) return std::nullopt;
  return number;
}

// The number behind the name at the begin of a line, as in "MemFree:  12 kB" or "inactive_file 12".
std::optional<std::int64_t> FieldOf(absl::string_view text, absl::string_view name) {
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(": \t"), absl::SkipEmpty());
    if (words.size() >= 2 && words[0] == name) return NumberOf(words[1]);
  }
  return std::nullopt;
}

std::int64_t KilobytesOf(absl::string_view meminfo, absl::string_view name) {
  return FieldOf(meminfo, name).value_or(0) * 1024;
}

// The pages of files that count as used. v1 says separately what a group has with those below it.
std::int64_t FileBytes(const MemoryFiles::Cgroup& cgroup) {
  std::int64_t bytes = 0;
  for (const char* name : {"inactive_file", "active_file"}) {
    const auto with_children = FieldOf(cgroup.stat, absl::StrCat("total_", name));
    bytes += with_children.has_value() ? *with_children : FieldOf(cgroup.stat, name).value_or(0);
  }
  return bytes;
}

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Adds the group and every one above it, if they have limits.
void AddUpwards(const std::string& root, std::string name, bool v1,
                std::vector<MemoryFiles::Cgroup>& cgroups) {
  if (name == "/") name.clear();
  while (true) {
    const auto read = [&](const char* file) {
      return TextOf(absl::StrCat(root, name, "/memory.", file));
    };
    MemoryFiles::Cgroup one{.name = name,
                            .limit = read(v1 ? "limit_in_bytes" : "max"),
                            .high = v1 ? "" : read("high"),
                            .usage = read(v1 ? "usage_in_bytes" : "current"),
                            .stat = read("stat")};
    if (!one.usage.empty()) cgroups.push_back(std::move(one));
    const std::size_t slash = name.rfind('/');
    if (slash == std::string::npos) return;
    name.resize(slash);
  }
}

}  // namespace

AvailableMemory AvailableMemoryOf(const MemoryFiles& files) {
  AvailableMemory least{.bytes = KilobytesOf(files.meminfo, "MemAvailable"),
                        .whose = "this machine"};
  constexpr std::int64_t kStrict = 2;
  if (NumberOf(files.overcommit) == kStrict) {
    least.bytes = std::min(least.bytes, KilobytesOf(files.meminfo, "CommitLimit") -
                                            KilobytesOf(files.meminfo, "Committed_AS"));
  }
  for (const MemoryFiles::Cgroup& cgroup : files.cgroups) {
    const std::int64_t used =
        std::max<std::int64_t>(0, NumberOf(cgroup.usage).value_or(0) - FileBytes(cgroup));
    for (const std::string& text : {cgroup.limit, cgroup.high}) {
      const std::optional<std::int64_t> limit = NumberOf(text);
      if (!limit.has_value() || *limit - used >= least.bytes) continue;
      least = {.bytes = *limit - used,
               .whose = absl::StrCat("the cgroup ", cgroup.name.empty() ? "/" : cgroup.name)};
    }
  }
  least.bytes = std::max<std::int64_t>(0, least.bytes);
  return least;
}

MemoryFiles ReadMemoryFiles(const std::string& proc, const std::string& cgroups) {
  MemoryFiles files{.meminfo = TextOf(proc + "/meminfo"),
                    .overcommit = TextOf(proc + "/sys/vm/overcommit_memory")};
  std::ifstream own(proc + "/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    // "0::/a/b" of v2, or "4:memory:/a/b" of v1.
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    if (fields[0] == "0" && fields[1].empty()) {
      AddUpwards(cgroups, fields[2], /*v1=*/false, files.cgroups);
      AddUpwards(cgroups + "/unified", fields[2], /*v1=*/false, files.cgroups);
    }
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    if (std::find(controllers.begin(), controllers.end(), "memory") == controllers.end()) continue;
    AddUpwards(cgroups + "/memory", fields[2], /*v1=*/true, files.cgroups);
  }
  return files;
}

}  // namespace flotilla
