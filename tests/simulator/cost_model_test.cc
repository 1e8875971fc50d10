#include "simulator/cost_model.h"

#include <gtest/gtest.h>

#include "simulator/machine.h"

namespace flotilla::simulator {
namespace {

TEST(CostModelTest, LinearIsASumOfItsTerms) {
  const LinearModel model{.step_ns = 1000,
                          .prefill_row_ns = 100,
                          .decode_row_ns = 10,
                          .prefill_context_ns = 2,
                          .decode_context_ns = 0.5};
  const StepShape shape{
      .prefill_rows = 3, .decode_rows = 2, .prefill_context = 6, .decode_context = 40};
  EXPECT_EQ(CostOf(model, shape).ns, 1000 + 300 + 20 + 12 + 20);
  EXPECT_EQ(CostOf(model, shape).bound, Bound::kNone);
}

// Figures that make each term a round number of nanoseconds.
RooflineModel Round() {
  RooflineModel m;
  m.weight_bytes = 1000;
  m.kv_bytes_per_token = 10;
  m.flops_per_row = 100;
  m.flops_per_sample = 50;
  m.flops_per_context = 1;
  m.bytes_per_second = 1e9;  // one byte a nanosecond
  m.flops_per_second = 1e9;
  m.step_overhead_ns = 7;
  m.row_overhead_ns = 3;
  return m;
}

TEST(CostModelTest, RooflineTakesTheLargerOfMemoryAndCompute) {
  const StepShape one{.decode_rows = 1, .decode_context = 5, .kv_positions = 5, .samples = 1};
  EXPECT_EQ(CostOf(Round(), one).ns, 1000 + 10 * 5 + 7 + 3);
  EXPECT_EQ(CostOf(Round(), one).bound, Bound::kMemory);
  const StepShape many{
      .prefill_rows = 20, .prefill_context = 210, .kv_positions = 20, .samples = 1};
  EXPECT_EQ(CostOf(Round(), many).ns, 20 * 100 + 50 + 210 + 7 + 3);
  EXPECT_EQ(CostOf(Round(), many).bound, Bound::kCompute);
}

TEST(CostModelTest, EfficiencyAndExchangeCount) {
  RooflineModel m = Round();
  m.memory_efficiency = 0.5;
  m.allreduces = 4;
  m.allreduce_ns = 11;
  m.allreduce_bytes_per_row = 6;
  m.allreduce_bytes_per_second = 2e9;
  const StepShape one{.decode_rows = 1, .decode_context = 5, .kv_positions = 5, .samples = 1};
  EXPECT_EQ(CostOf(m, one).ns, 2 * 1050 + 4 * (11 + 3) + 7 + 3);
}

TEST(CostModelTest, AnEmptyStepIsCheapAndNoStepIsFreeOrEndless) {
  EXPECT_EQ(CostOf(Round(), {}).ns, 1000);
  EXPECT_EQ(CostOf(LinearModel{}, {.decode_rows = 1}).ns, 1);
  EXPECT_EQ(CostOf(LinearModel{.step_ns = 1e300}, {.decode_rows = 1}).ns, 86'400'000'000'000);
}

TEST(CostModelTest, TheShapeOfABatchCountsWhatRowsAttendTo) {
  worker::Batch batch;
  // Rows at positions 4, 5, 6 attend to 5 + 6 + 7 positions.
  batch.items.push_back({.first_position = 4, .row_count = 3, .samples = true});
  batch.items.push_back(
      {.first_position = 9, .row_begin = 3, .row_count = 1, .decode = true, .samples = true});
  const StepShape expected{.prefill_rows = 3,
                           .decode_rows = 1,
                           .prefill_context = 18,
                           .decode_context = 10,
                           .kv_positions = 17,
                           .samples = 2};
  EXPECT_EQ(ShapeOf(batch, {{{}}}), expected);

  // In a window of 6 the rows attend to 5 + 6 + 6 positions and read 7, and the decode to 6.
  const KvGroup window{.kind = KvGroup::Kind::kWindow, .window = 6};
  StepShape in_window = expected;
  in_window.prefill_context = 17;
  in_window.decode_context = 6;
  in_window.kv_positions = 13;
  EXPECT_EQ(ShapeOf(batch, {{window}}), in_window);
  StepShape mean = expected;
  mean.prefill_context = (18 + 3 * 17) / 4;
  mean.decode_context = (10 + 3 * 6) / 4;
  mean.kv_positions = (17 + 3 * 13) / 4;
  EXPECT_EQ(ShapeOf(batch, {{window, {}, window, window}}), mean);
}

// The least times, which are derived by hand from data sheets, with the efficiencies and overheads
// of machine.cc.
TEST(CostModelTest, H200MeetsItsDerivation) {
  const Machine machine = FindMachine("h200").value();
  const auto decode_ms = [&](std::uint64_t rows, std::uint64_t context) {
    const StepShape shape{.decode_rows = rows,
                          .decode_context = rows * context,
                          .kv_positions = rows * context,
                          .samples = rows};
    return 1e-6 * static_cast<double>(CostOf(machine.cost, shape).ns);
  };
  EXPECT_NEAR(decode_ms(1, 1024), 3.155 / 0.9 + 0.6, 0.01);
  EXPECT_NEAR(decode_ms(64, 1024), 4.917 / 0.9 + 0.6 + 0.032, 0.03);
  EXPECT_NEAR(decode_ms(256, 1024), 10.285 / 0.9 + 0.6 + 0.128, 0.05);
  const StepShape prompt{
      .prefill_rows = 1024, .prefill_context = 1024 * 1025 / 2, .kv_positions = 1024, .samples = 1};
  EXPECT_NEAR(1e-6 * static_cast<double>(CostOf(machine.cost, prompt).ns), 14.7 / 0.65 + 0.6, 0.3);
}

}  // namespace
}  // namespace flotilla::simulator
