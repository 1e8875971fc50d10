#include "absl/status/status.h"
#include "worker/device/make_device.h"

namespace flotilla::worker {

absl::StatusOr<std::unique_ptr<Device>> MakeDevice(const DeviceChoice&, int) {
  return absl::UnimplementedError(
      "no GPU can be used: this build has no CUDA code (docs/gpu.md says how to build it)");
}

}  // namespace flotilla::worker
