#include "worker/device/device_choice.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace flotilla::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = DeviceChoice::Kind;

TEST(DeviceChoiceTest, ReadsWhatItWrites) {
  for (const char* text : {"auto", "cpu", "cuda", "cuda:1", "cuda:1023"}) {
    const auto choice = ParseDeviceChoice(text);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->Name(), text);
  }
  EXPECT_EQ(*ParseDeviceChoice("auto"), (DeviceChoice{.kind = Kind::kAuto}));
  EXPECT_EQ(*ParseDeviceChoice("cpu"), DeviceChoice());
  EXPECT_EQ(*ParseDeviceChoice("cuda:0"), *ParseDeviceChoice("cuda"));
  EXPECT_EQ(*ParseDeviceChoice("cuda:12"), (DeviceChoice{.kind = Kind::kCuda, .first_gpu = 12}));
}

TEST(DeviceChoiceTest, RefusesAllElse) {
  for (const char* text : {"", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:+1", "cuda: 1", "cuda:1 ",
                           "cuda:1024", "cuda:99999999999", "cuda:x", "cpu:0", "auto:1"}) {
    const auto choice = ParseDeviceChoice(text);
    EXPECT_EQ(choice.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(choice.status().message(), HasSubstr("is not auto, cpu, cuda or cuda:N"));
  }
}

TEST(DeviceChoiceTest, RanksOfAHostTakeAGpuEach) {
  const auto gpus = [](int first, int count) {
    std::vector<int> all;
    for (int rank = 0; rank < 4; ++rank) {
      all.push_back(DeviceChoice{.kind = Kind::kCuda, .first_gpu = first}.GpuOf(rank, count));
    }
    return all;
  };
  EXPECT_THAT(gpus(0, 8), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(gpus(6, 8), ElementsAre(6, 7, 0, 1));
  EXPECT_THAT(gpus(1, 2), ElementsAre(1, 0, 1, 0));
  EXPECT_THAT(gpus(0, 1), ElementsAre(0, 0, 0, 0));
  // There is no such GPU, and so the driver says.
  EXPECT_THAT(gpus(2, 2), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(gpus(0, 0), ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace flotilla::worker
