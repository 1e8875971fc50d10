// Makes the device of a GPU, in builds with CUDA code (make_device_cuda.cc) and in those without
// (make_device_none.cc).
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/device/device.h"
#include "worker/device/device_choice.h"

namespace flotilla::worker {

// The GPU that `choice` gives to the rank number `local_rank` of this host. UNAVAILABLE: there is
// no driver, or no such GPU; FAILED_PRECONDITION: kernels are not built for it; RESOURCE_EXHAUSTED:
// it takes no other process now; INTERNAL: it does not work; UNIMPLEMENTED: this build has no CUDA
// code. The message is one line.
absl::StatusOr<std::unique_ptr<Device>> MakeDevice(const DeviceChoice& choice, int local_rank);

// As MakeDevice, or what a test puts in its place.
using DeviceMaker = std::function<absl::StatusOr<std::unique_ptr<Device>>(
    const DeviceChoice& choice, int local_rank)>;

}  // namespace flotilla::worker
