#include "worker/device/cuda_device.h"
#include "worker/device/make_device.h"

namespace flotilla::worker {

absl::StatusOr<std::unique_ptr<Device>> MakeDevice(const DeviceChoice& choice, int local_rank) {
  return MakeCudaDevice(choice.GpuOf(local_rank, CudaDeviceCount()));
}

}  // namespace flotilla::worker
