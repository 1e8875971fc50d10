#include "common/rt/cpu_quota.h"

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

namespace flotilla {
namespace {

constexpr char kCgroupRoot[] = "/sys/fs/cgroup";

int CeilDiv(int64_t quota, int64_t period) {
  return static_cast<int>(std::clamp<int64_t>((quota + period - 1) / period, 1, 1 << 20));
}

// "<quota|max> <period>" of one cgroup v2 folder.
std::optional<int> QuotaOf(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  int64_t period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return std::nullopt;
  const int64_t quota_us = std::strtoll(quota.c_str(), nullptr, 10);
  if (quota_us <= 0) return std::nullopt;
  return CeilDiv(quota_us, period);
}

std::optional<int> QuotaV1() {
  const std::string folder = std::string(kCgroupRoot) + "/cpu/";
  std::ifstream quota_file(folder + "cpu.cfs_quota_us");
  std::ifstream period_file(folder + "cpu.cfs_period_us");
  int64_t quota = 0, period = 0;
  if (!(quota_file >> quota) || !(period_file >> period) || quota <= 0 || period <= 0) {
    return std::nullopt;
  }
  return CeilDiv(quota, period);
}

// The process's own path in the v2 hierarchy, e.g. "/user.slice/a.scope".
std::string OwnCgroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("0::", 0) == 0) return line.substr(3);
  }
  return "";
}

}  // namespace

int AvailableCpus() {
  int cpus = 1;
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) cpus = std::max(1, CPU_COUNT(&mask));
  // A limit on any ancestor holds for the process.
  for (std::string path = OwnCgroup();;) {
    if (const auto quota = QuotaOf(kCgroupRoot + path)) cpus = std::min(cpus, *quota);
    const size_t slash = path.rfind('/');
    if (path.empty() || slash == std::string::npos) break;
    path.resize(slash);
  }
  if (const auto quota = QuotaV1()) cpus = std::min(cpus, *quota);
  return cpus;
}

}  // namespace flotilla
