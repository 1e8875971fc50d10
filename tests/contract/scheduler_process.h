// A scheduler's process inside a test: a fake worker group, its engine, and the engine's
// server on a port.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "common/rt/clock.h"
#include "scheduler/remote/engine_server.h"
#include "scheduler/server/engine_loop.h"
#include "tests/support/engine_recorder.h"
#include "tests/support/fake_executor.h"

namespace flotilla::testing {

// Waits, a minute at most, until other threads make the condition true.
template <class Done>
void WaitUntil(const Done& done) {
  const absl::Time limit = absl::Now() + absl::Minutes(1);
  while (!done()) {
    ASSERT_LT(absl::Now(), limit) << "what was waited for did not come";
    std::this_thread::yield();
  }
}

class SchedulerProcess {
 public:
  struct Options {
    std::uint16_t port = 0;
    std::uint64_t numerics_id = 0;  // 0: that of the fake group
    std::string model_id;           // empty: that of the fake group
    std::uint64_t tokenizer_hash = 77;
  };
  // When it returns, the server is serving. Advance of the executor runs steps.
  explicit SchedulerProcess(const Options& options)
      : executor_(Executor(options)),
        engine_({.core = {.max_queued_tokens = 4096},
                 .model_id = options.model_id,
                 .tokenizer_bytes = "a tokenizer",
                 .tokenizer_hash = options.tokenizer_hash},
                &executor_, &clock_) {
    EXPECT_TRUE(engine_.Start().ok());
    executor_.AdvanceAll();  // Ready
    EXPECT_TRUE(engine_.WaitReady().ok());
    auto server = scheduler::EngineServer::Start(
        {.listen = {.port = options.port}, .load_interval = absl::Milliseconds(1)}, &engine_,
        &clock_);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~SchedulerProcess() {
    server_->Stop();
    engine_.Stop();
  }

  std::uint16_t port() const { return server_->port(); }
  FakeExecutor& executor() { return executor_; }
  scheduler::InProcessEngine& engine() { return engine_; }

 private:
  static FakeExecutorOptions Executor(const Options& options) {
    FakeExecutorOptions executor;
    executor.manual = true;
    executor.description.max_context = 1024;
    if (options.numerics_id != 0) executor.description.numerics_id = options.numerics_id;
    return executor;
  }

  const SteadyClock clock_;
  FakeExecutor executor_;
  scheduler::InProcessEngine engine_;
  std::unique_ptr<scheduler::EngineServer> server_;
};

}  // namespace flotilla::testing
