// DeviceChoice: what the ranks of a group compute on, as --device says. All ranks of a group have
// the same choice. A pure value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace flotilla::worker {

struct DeviceChoice {
  enum class Kind : std::uint8_t {
    kCpu,
    kCuda,  // GPUs of NVIDIA, or nothing
    kAuto,  // such GPUs if every rank of the group can compute on one, else CPUs
  };

  // The GPU of the host's rank number `local_rank`, of `count` that there are: one GPU each from
  // `first_gpu` on, and those that were passed over after the last. Ranks share GPUs where these
  // are fewer. Where there is no GPU `first_gpu`, that number.
  int GpuOf(int local_rank, int count) const {
    return first_gpu < count ? (first_gpu + local_rank) % count : first_gpu;
  }

  // As ParseDeviceChoice reads it.
  std::string Name() const;

  bool operator==(const DeviceChoice&) const = default;

  Kind kind = Kind::kCpu;
  int first_gpu = 0;  // kCuda only; the driver counts from 0
};

// Reads "auto", "cpu", "cuda" or "cuda:N" with N of 0 to 1023. INVALID_ARGUMENT: it is none of
// these.
absl::StatusOr<DeviceChoice> ParseDeviceChoice(std::string_view text);

}  // namespace flotilla::worker
