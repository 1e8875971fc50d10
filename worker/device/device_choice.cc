#include "worker/device/device_choice.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace flotilla::worker {
namespace {

constexpr int kMostGpus = 1024;

}  // namespace

std::string DeviceChoice::Name() const {
  switch (kind) {
    case Kind::kCpu:
      return "cpu";
    case Kind::kAuto:
      return "auto";
    case Kind::kCuda:
      break;
  }
  return first_gpu == 0 ? "cuda" : absl::StrCat("cuda:", first_gpu);
}

absl::StatusOr<DeviceChoice> ParseDeviceChoice(std::string_view text) {
  using Kind = DeviceChoice::Kind;
  if (text == "auto") return DeviceChoice{.kind = Kind::kAuto};
  if (text == "cpu") return DeviceChoice{.kind = Kind::kCpu};
  if (text == "cuda") return DeviceChoice{.kind = Kind::kCuda};
  absl::string_view number(text.data(), text.size());
  int gpu = 0;
  if (absl::ConsumePrefix(&number, "cuda:") &&
      std::all_of(number.begin(), number.end(), absl::ascii_isdigit) &&
      absl::SimpleAtoi(number, &gpu) && gpu < kMostGpus) {
    return DeviceChoice{.kind = Kind::kCuda, .first_gpu = gpu};
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", std::string(text), "' is not auto, cpu, cuda or cuda:N with the number of a GPU"));
}

}  // namespace flotilla::worker
