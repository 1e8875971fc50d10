#include "worker/device/simulated_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kernels/cuda/host_ops.h"

namespace flotilla::worker {
namespace {

using Queue = Device::Queue;
using ::testing::HasSubstr;

class SimulatedDeviceTest : public ::testing::Test {
 protected:
  explicit SimulatedDeviceTest(std::uint64_t seed = 1)
      : device_({.seed = seed, .ops = &kernels::cuda::HostOps(), .memory_bytes = 4096}) {}

  Device::Memory Make(std::size_t floats) { return *device_.Allocate(floats * sizeof(float)); }
  Device::Memory Pinned(std::vector<float> values) {
    Device::Memory memory = *device_.AllocatePinned(values.size() * sizeof(float));
    std::memcpy(memory.data(), values.data(), memory.bytes());
    return memory;
  }
  std::string Error() { return std::string(device_.status().message()); }

  SimulatedDevice device_;
};

TEST_F(SimulatedDeviceTest, AQueueDoesItsWorkInOrder) {
  const Device::Memory x = Pinned({1, 2, 3}), on_device = Make(3), back = Pinned({0, 0, 0});
  device_.Upload(Queue::kCompute, on_device.data(), x.data(), 12);
  // y += y.
  const kernels::cuda::AddArgs twice{
      .x = on_device.as<float>(), .y = on_device.as<float>(), .n = 3, .rows = 1};
  device_.Launch(Queue::kCompute, [&](const kernels::cuda::Ops& ops, kernels::cuda::Stream stream) {
    return ops.add(twice, stream);
  });
  device_.Download(Queue::kCompute, back.data(), on_device.data(), 12);
  ASSERT_TRUE(device_.Synchronize(device_.Record(Queue::kCompute)).ok()) << Error();
  EXPECT_EQ(std::vector<float>(back.as<float>(), back.as<float>() + 3),
            (std::vector<float>{2, 4, 6}));
}

// Whoever reads a result before the device has written it gets no number.
TEST_F(SimulatedDeviceTest, WhatIsNotDoneIsNoNumber) {
  const Device::Memory fresh = Make(1), back = Pinned({5});
  device_.Download(Queue::kCompute, back.data(), fresh.data(), 4);
  EXPECT_TRUE(std::isnan(*back.as<float>()));
  ASSERT_TRUE(device_.Synchronize(device_.Record(Queue::kCompute)).ok());
  EXPECT_TRUE(std::isnan(*back.as<float>()));  // nobody has written it
}

// Without an event the queues go on in any order; with one, in that order.
TEST(SimulatedDevice, QueuesAreOrderedByEventsAlone) {
  for (const bool ordered : {false, true}) {
    std::set<float> seen;
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
      SimulatedDevice device({.seed = seed, .ops = &kernels::cuda::HostOps()});
      const Device::Memory pinned = *device.AllocatePinned(8), on_device = *device.Allocate(4);
      const float values[] = {1, 0};
      std::memcpy(pinned.data(), values, sizeof values);
      device.Fill(Queue::kCompute, on_device.data(), 0, 4);
      device.Upload(Queue::kCompute, on_device.data(), pinned.data(), 4);
      if (ordered) device.Wait(Queue::kCopy, device.Record(Queue::kCompute));
      device.Download(Queue::kCopy, pinned.data() + 4, on_device.data(), 4);
      ASSERT_TRUE(device.Synchronize(device.Record(Queue::kCopy)).ok());
      const float got = pinned.as<float>()[1];
      seen.insert(std::isnan(got) ? -1 : got);
      ASSERT_TRUE(device.Synchronize(device.Record(Queue::kCompute)).ok());
    }
    EXPECT_EQ(seen, ordered ? std::set<float>({1}) : std::set<float>({-1, 0, 1}));
  }
}

TEST_F(SimulatedDeviceTest, RefusesWhatItHasNoRoomFor) {
  const Device::Memory most = Make(1000);
  const absl::Status status = device_.Allocate(100).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("96 bytes are free"));
  EXPECT_TRUE(device_.status().ok());
}

TEST_F(SimulatedDeviceTest, MemoryThatNobodyOwnsIsAnError) {
  const Device::Memory x = Pinned({1, 2});
  const Device::Memory small = Make(1);
  device_.Upload(Queue::kCompute, small.data(), x.data(), 8);
  EXPECT_THAT(Error(), HasSubstr("Upload of 8 bytes that nobody owns"));
}

// With most seeds the copy runs after the memory is given back.
TEST(SimulatedDevice, MemoryThatIsGivenBackTooEarlyIsAnError) {
  int seen = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SimulatedDevice device({.seed = seed, .ops = &kernels::cuda::HostOps()});
    std::optional<Device::Memory> gone = *device.Allocate(256);
    const Device::Memory stays = *device.Allocate(256);
    device.Copy(Queue::kCompute, stays.data(), gone->data(), 256);
    gone.reset();
    const absl::Status status = device.Synchronize(device.Record(Queue::kCompute));
    if (status.ok()) continue;
    ++seen;
    EXPECT_THAT(std::string(status.message()), HasSubstr("nobody owns"));
  }
  EXPECT_GT(seen, 0);
}

TEST_F(SimulatedDeviceTest, AWaitForWhatIsNotRecordedIsAnError) {
  device_.Wait(Queue::kCopy, 7);
  EXPECT_THAT(Error(), HasSubstr("not recorded"));
}

// The first error stays, and nothing runs behind it.
TEST_F(SimulatedDeviceTest, AnErrorStays) {
  device_.FailAfter(2);
  const Device::Memory x = Pinned({1}), first = Make(1), back = Pinned({0});
  device_.Upload(Queue::kCompute, first.data(), x.data(), 4);
  device_.Fill(Queue::kCompute, first.data(), 0, 4);
  device_.Download(Queue::kCompute, back.data(), first.data(), 4);
  const absl::Status status = device_.Synchronize(device_.Record(Queue::kCompute));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(std::isnan(*back.as<float>()));
  EXPECT_EQ(device_.Synchronize(device_.Record(Queue::kCopy)), status);
  EXPECT_EQ(device_.Allocate(4).status(), status);
}

}  // namespace
}  // namespace flotilla::worker
