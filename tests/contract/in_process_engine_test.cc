// InProcessEngine passes the contract. It runs over a FakeExecutor in manual mode.
#include <memory>

#include <gtest/gtest.h>

#include "common/rt/clock.h"
#include "scheduler/server/engine_loop.h"
#include "tests/contract/engine_contract.h"
#include "tests/support/fake_executor.h"

namespace flotilla::testing {
namespace {

class EngineOverFake : public EngineUnderTest {
 public:
  EngineOverFake()
      : executor_(ExecutorOptions()),
        engine_({.core = {.max_queued_tokens = 4096}}, &executor_, &clock_) {
    EXPECT_TRUE(engine_.Start().ok());
    executor_.AdvanceAll();  // Ready
    EXPECT_TRUE(engine_.WaitReady().ok());
  }
  ~EngineOverFake() override { engine_.Stop(); }

  Engine& engine() override { return engine_; }
  bool Pump() override { return executor_.Advance(); }

 private:
  static FakeExecutorOptions ExecutorOptions() {
    FakeExecutorOptions options;
    options.manual = true;
    options.description.max_context = 1024;
    return options;
  }

  const SteadyClock clock_;
  FakeExecutor executor_;
  scheduler::InProcessEngine engine_;
};

INSTANTIATE_TEST_SUITE_P(InProcess, EngineContract,
                         ::testing::Values(EngineCase{
                             "InProcessEngine", [] { return std::make_unique<EngineOverFake>(); }}),
                         EngineCaseName);

}  // namespace
}  // namespace flotilla::testing
