// Device of CUDA: GPU `index` of those that the driver shows.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/device/device.h"

namespace flotilla::worker {

// UNAVAILABLE: there is no driver, or no such GPU; FAILED_PRECONDITION: kernels are not built for
// it; RESOURCE_EXHAUSTED: it takes no other process now, or is not ready yet; INTERNAL: it does not
// work. The messages say so in one line.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(int index);

// The number of GPUs; 0 where there is no driver.
int CudaDeviceCount();

}  // namespace flotilla::worker
