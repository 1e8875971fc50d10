#include "worker/device/await_memory.h"

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"

namespace flotilla::worker {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(200);

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> MakeWithFreeMemory(
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<Device>>()> make,
    absl::FunctionRef<void(absl::Duration)> sleep) {
  absl::Duration waited, settled;
  const auto pause = [&] {
    sleep(kPause);
    waited += kPause;
    settled += kPause;
  };
  auto device = make();
  while (absl::IsResourceExhausted(device.status()) && waited < kMostMemoryWait) {
    pause();
    device = make();
  }
  if (!device.ok()) return device;
  settled = absl::ZeroDuration();
  std::int64_t most = (*device)->FreeBytes();
  const std::int64_t total = (*device)->TotalBytes();
  while (most < total / 10 * 9 && waited < kMostMemoryWait && settled < kSettledMemoryWait) {
    pause();
    const std::int64_t free = (*device)->FreeBytes();
    if (free > most) settled = absl::ZeroDuration();
    most = std::max(most, free);
  }
  return device;
}

}  // namespace flotilla::worker
