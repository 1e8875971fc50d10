#include "cli/measure_steps.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/hf_folder.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/tiny_gguf.h"

namespace flotilla::cli {
namespace {

TEST(StepMeterTest, AModelWithWindowsKeepsItsKvGroups) {
  testing::GgufBuilder builder = testing::TinyGgufBuilder(
      {.hidden = 32, .layers = 4, .vocab = simulator::kSimulatedVocabulary});
  builder.AddUint32("llama.attention.sliding_window", 64);
  builder.AddInts("llama.attention.sliding_window_pattern", {1, 1, 1, 0});
  const testing::ScratchDirectory scratch;
  const std::string path = scratch.path() + "/tiny.gguf";
  const std::vector<std::byte> bytes = builder.Build();
  testing::WriteFile(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const SteadyClock clock;
  absl::StatusOr<StepMeter> meter = StepMeter::Create(path, /*threads=*/1, &clock);
  ASSERT_TRUE(meter.ok()) << meter.status();
  const simulator::Machine& machine = meter->machine();
  EXPECT_THAT(machine.kv_windows, ::testing::UnorderedElementsAre(64, 64, 64, 0));
  // Sequences grow beyond the window.
  simulator::SyntheticOptions load;
  load.arrivals = simulator::SyntheticOptions::Arrivals::kClosed;
  load.concurrency = 3;
  load.requests = 9;
  load.prompt = {.mean = 150, .sigma = 0.5, .max = 300};
  load.output = {.mean = 20, .sigma = 0.5, .max = 40};
  simulator::SimulationOptions options;
  options.core = simulator::DefaultOptions(machine);
  std::vector<simulator::MeasuredStep> steps;
  const auto record =
      meter->Run(simulator::MakeWorkload(load).value(), options, /*seconds=*/1000, &steps);
  ASSERT_TRUE(record.ok()) << record.status();
  EXPECT_GT(steps.size(), 20u);
  for (const simulator::RequestRecord& request : record->requests) {
    EXPECT_EQ(request.outcome, RequestOutcome::kFinished);
  }
}

}  // namespace
}  // namespace flotilla::cli
