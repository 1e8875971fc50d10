// EngineRunner: a whole engine in the test's process (scheduler, worker, model)
// behind the Engine seam. It runs requests to their end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "common/rt/clock.h"
#include "common/types/engine.h"
#include "model/checkpoint.h"
#include "scheduler/core/options.h"
#include "scheduler/server/engine_loop.h"
#include "tests/support/manual_clock.h"
#include "tests/support/turns.h"
#include "worker/exec/in_process_executor.h"

namespace flotilla::testing {

// Everything that one request received.
struct Answer {
  // The output of one sequence of a request.
  struct Sequence {
    std::vector<TokenEvent> tokens;
    FinishReason reason = FinishReason::kError;
    float score = 0;

    std::vector<TokenId> ids() const;
  };

  bool ended = false;
  absl::Status status;
  FinishReason reason = FinishReason::kError;  // of the sequence that ended last
  Usage usage;
  std::vector<TokenEvent> tokens;   // of sequence 0
  std::vector<Sequence> sequences;  // all of them, sequence 0 too
  // Entry i is about prompt token i + 1.
  std::vector<float> prompt_logprobs;
  std::vector<std::vector<TopLogprob>> prompt_top;

  std::vector<TokenId> ids() const;
  // The tokens of all sequences and the bits of all log-probabilities, in order; with several
  // sequences also the bits of their scores.
  std::vector<std::uint32_t> Bits() const;
};

class EngineRunner {
 public:
  struct Options {
    worker::RankOptions rank;
    scheduler::CoreOptions core;
    // The engine receives all requests of the first Run at once, even if they are
    // submitted slowly, and results one by one. Not together with `turns`.
    bool together = false;
    // The executor measures no time for a step, so that draft tokens always seem worthwhile.
    bool frozen_clock = false;
    // The engine is told that a step takes a millisecond, and a copy of a block a nanosecond,
    // whatever they take. So it swaps what it preempts whenever it may. Only with `together`.
    bool fixed_costs = false;
    // If set, the engine computes only when it is its turn. Null: always.
    std::shared_ptr<Turns> turns;
    // The same as in InProcessEngineOptions.
    std::function<void(const scheduler::Preemption&)> on_preemption;
    std::function<void(const scheduler::SchedulerCore&)> on_planned;
  };

  // Starts the engine and waits until it is ready. If the start fails, the test fails
  // and the answers of the runner are UNAVAILABLE.
  EngineRunner(std::shared_ptr<const model::Checkpoint> file, Options options);
  ~EngineRunner();

  // Submits all requests at once, in this order, and waits for their ends. The answers
  // have the order of `requests`, whose ids must differ.
  std::vector<Answer> Run(const std::vector<TokenizedRequest>& requests);

  scheduler::InProcessEngine& engine() { return *engine_; }

 private:
  class OneByOne;

  SteadyClock clock_;
  ManualClock frozen_clock_;
  absl::Notification submitted_;  // the first Run
  std::unique_ptr<worker::InProcessExecutor> executor_;
  std::unique_ptr<OneByOne> one_by_one_;  // with `together`
  std::shared_ptr<Turns> turns_;
  std::unique_ptr<StepExecutor> turn_;  // the executor that turns_ made
  std::unique_ptr<scheduler::InProcessEngine> engine_;
};

// The real model's file, mapped. If it is missing, the test fails and names the file.
std::shared_ptr<const model::Checkpoint> OpenRealModel();

// Whether a sanitizer is on. The real model is then 12 times slower, so tests run the
// same code on less data.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Whether FLOTILLA_LONG=1, which asks also for tests that are too slow for every submission.
bool LongTests();

}  // namespace flotilla::testing
