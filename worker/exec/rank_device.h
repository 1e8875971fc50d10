// What ranks compute on, as the log names it.
#pragma once

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/obs/log.h"

namespace flotilla::worker {

struct RankDevice {
  std::string name;    // e.g. "NVIDIA H100 80GB HBM3" or "CPU (avx512)"
  std::string no_gpu;  // why that is no GPU, where DeviceChoice::Kind::kAuto looked for one
  // How several ranks on GPUs exchange activations: e.g. "nccl 2.28.9", or "host", and why that is
  // not NCCL.
  std::string exchange, no_nccl;

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

}  // namespace flotilla::worker
