// What ranks compute on, as the log names it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/obs/log.h"
#include "common/types/executor.h"

namespace flotilla::worker {

struct RankDevice {
  std::string name;    // e.g. "NVIDIA H100 80GB HBM3" or "CPU (avx512)"
  std::string no_gpu;  // why that is no GPU, where DeviceChoice::Kind::kAuto looked for one
  // How several ranks on GPUs exchange activations: e.g. "nccl 2.28.9", or "host", and why that is
  // not NCCL.
  std::string exchange, no_nccl;
  // What the number of KV blocks comes from (BlockChoice::reason); empty: the operator.
  std::string kv_memory;

  // What the name of a rank begins with that computes on a CPU.
  static constexpr char kCpu[] = "CPU (";
  bool on_cpus() const { return absl::StrContains(name, kCpu); }
  bool on_gpus() const {
    for (const absl::string_view one : absl::StrSplit(name, ", ", absl::SkipEmpty())) {
      if (!absl::StartsWith(one, kCpu)) return true;
    }
    return false;
  }

  // Makes this also what `other` is, with each name once.
  void Add(const RankDevice& other) {
    if (name.find(other.name) == std::string::npos) name += (name.empty() ? "" : ", ") + other.name;
    if (no_gpu.empty()) no_gpu = other.no_gpu;
    if (exchange.empty()) exchange = other.exchange;
    if (no_nccl.empty()) no_nccl = other.no_nccl;
    if (kv_memory.empty()) kv_memory = other.kv_memory;
  }

  bool operator==(const RankDevice&) const = default;
};

// Logs what a group computes on, after it has loaded its model.
inline void LogDevice(const RankDevice& device, Logger& log) {
  if (!device.no_gpu.empty()) {
    log.Info("model loaded", {{"device", device.name}, {"no_gpu", device.no_gpu}});
  } else if (device.exchange.empty()) {
    log.Info("model loaded", {{"device", device.name}});
  } else if (device.no_nccl.empty()) {
    log.Info("model loaded", {{"device", device.name}, {"exchange", device.exchange}});
  } else {
    log.Info("model loaded",
             {{"device", device.name}, {"exchange", device.exchange}, {"no_nccl", device.no_nccl}});
  }
}

// Logs the KV pool of a group, which counts those positions that every KV group keeps. The bytes
// are those of one rank.
inline void LogPool(const RankDevice& device, const ExecutorDescription& group, Logger& log) {
  const std::uint64_t blocks = group.block_count - 1;
  const KvGroup& first = group.groups.front();
  log.Info("KV pool",
           {{"blocks", blocks},
            {"tokens", blocks * first.tokens_per_block / group.groups.size()},
            {"rank_bytes", blocks * first.bytes_per_block},
            {"of", device.kv_memory.empty() ? std::string("--kv-blocks") : device.kv_memory}});
}

}  // namespace flotilla::worker
