// A process that has ended gives its memory on the GPU back some time later, and the process that
// takes its place finds the GPU full for so long.
#pragma once

#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/device/device.h"

namespace flotilla::worker {

// The longest wait, and the one after which memory that is in use counts as somebody else's.
inline constexpr absl::Duration kMostMemoryWait = absl::Seconds(10);
inline constexpr absl::Duration kSettledMemoryWait = absl::Seconds(2);

// Makes a device, and waits until nine tenths of its memory are free, or until no more has come
// free for kSettledMemoryWait; it also waits where there is no room even to make the device
// (RESOURCE_EXHAUSTED), but in all for kMostMemoryWait at most. `sleep` lets the time pass.
absl::StatusOr<std::unique_ptr<Device>> MakeWithFreeMemory(
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<Device>>()> make,
    absl::FunctionRef<void(absl::Duration)> sleep);

}  // namespace flotilla::worker
