#include "simulator/reservation.h"

#include "gtest/gtest.h"
#include "simulator/summary.h"

namespace flotilla::simulator {
namespace {

TEST(ReservationTest, SlotsOfEachKind) {
  const SimulatedRequest request{.prompt_tokens = 100, .output_tokens = 33};
  EXPECT_EQ(ReservedSlots(Reservation::kMax, request, 2048), 2048u);
  EXPECT_EQ(ReservedSlots(Reservation::kPowerOfTwo, request, 2048), 164u);
  EXPECT_EQ(ReservedSlots(Reservation::kOracle, request, 2048), 133u);
  EXPECT_EQ(ReservedSlots(Reservation::kPowerOfTwo, request, 140), 140u);
  const SimulatedRequest power{.prompt_tokens = 1, .output_tokens = 32};
  EXPECT_EQ(ReservedSlots(Reservation::kPowerOfTwo, power, 2048), 33u);
}

struct Setting {
  Machine machine;
  Workload workload;
  SimulationOptions options;
};

Setting Overloaded() {
  Setting s;
  s.machine = FindMachine("a100-opt-13b").value();
  SyntheticOptions o = FindPreset("long").value();
  o.requests = 400;
  o.rate = 4;
  s.workload = MakeWorkload(o).value();
  s.options.core = DefaultOptions(s.machine);
  s.options.core.prefix_cache = false;
  return s;
}

Summary Reserve(const Setting& s, Reservation kind) {
  const auto record = SimulateReservation(s.machine, s.workload, s.options, kind, 2048);
  EXPECT_TRUE(record.ok()) << record.status();
  for (std::size_t i = 0; i < s.workload.requests.size(); ++i) {
    EXPECT_EQ(record->requests[i].output_tokens, s.workload.requests[i].output_tokens);
  }
  return Summarize(s.workload, *record, {});
}

// The emulation of reserved memory against the real scheduler with blocks as long
// as the reservation: two programs, one behaviour.
TEST(ReservationTest, TheEmulationAgreesWithTheRealSchedulerOnLongBlocks) {
  Setting s = Overloaded();
  const Summary emulated = Reserve(s, Reservation::kMax);
  s.options.core.watermark_blocks = 0;
  s.options.core.expected_output_permille = 0;
  s.options.core.itl_permille = 0;  // the emulation's chunks take all rows
  const auto record = Simulate(MachineWithReservation(s.machine, 2048), s.workload, s.options);
  ASSERT_TRUE(record.ok()) << record.status();
  const Summary real = Summarize(s.workload, *record, {});
  EXPECT_EQ(real.peak_running, 7);  // 15,700 slots
  EXPECT_EQ(emulated.peak_running, 7);
  EXPECT_NEAR(emulated.output_tokens_per_s, real.output_tokens_per_s,
              0.01 * real.output_tokens_per_s);
  EXPECT_NEAR(emulated.mean_running, real.mean_running, 0.02 * real.mean_running);
  EXPECT_NEAR(emulated.ttft_ms.p50, real.ttft_ms.p50, 0.02 * real.ttft_ms.p50);
}

TEST(ReservationTest, TheLessIsReservedTheMoreIsServedAndPagesServeMost) {
  const Setting s = Overloaded();
  const auto record = Simulate(s.machine, s.workload, s.options);
  ASSERT_TRUE(record.ok()) << record.status();
  const Summary paged = Summarize(s.workload, *record, {});
  const Summary max = Reserve(s, Reservation::kMax);
  const Summary power = Reserve(s, Reservation::kPowerOfTwo);
  const Summary oracle = Reserve(s, Reservation::kOracle);
  EXPECT_LT(max.output_tokens_per_s, power.output_tokens_per_s);
  EXPECT_LT(power.output_tokens_per_s, oracle.output_tokens_per_s);
  EXPECT_LT(oracle.output_tokens_per_s, paged.output_tokens_per_s);
  EXPECT_LT(paged.wasted_memory, 0.04);
  EXPECT_GT(oracle.wasted_memory, 0.2);
  EXPECT_GT(max.wasted_memory, 0.6);
}

TEST(ReservationTest, WhatNeverFitsIsRefused) {
  Setting s = Overloaded();
  s.workload.requests.resize(2);
  s.workload.requests[0].output_tokens = 4000;
  const auto record =
      SimulateReservation(s.machine, s.workload, s.options, Reservation::kOracle, 2048);
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->requests[0].outcome, RequestOutcome::kRefused);
  EXPECT_EQ(record->requests[1].outcome, RequestOutcome::kFinished);
}

}  // namespace
}  // namespace flotilla::simulator
