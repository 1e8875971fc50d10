// EngineRunner: a whole engine in the test's process (scheduler, worker, model)
// behind the Engine seam, and requests run through it to their end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "common/rt/clock.h"
#include "common/types/engine.h"
#include "model/gguf.h"
#include "scheduler/core/options.h"
#include "scheduler/server/engine_loop.h"
#include "tests/support/turns.h"
#include "worker/in_process_executor.h"

namespace flotilla::testing {

// Everything that one request got.
struct Answer {
  // What a request with several sequences says of one.
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
  // Tokens and the bits of all log-probabilities, in order.
  std::vector<std::uint32_t> Bits() const;
};

class EngineRunner {
 public:
  struct Options {
    RankOptions rank;
    CoreOptions core;
    // The engine sees all requests of the first Run at once, however slowly they are
    // submitted.
    bool together = false;
    // To the executor a step takes no time, so that drafts always seem to pay.
    bool frozen_clock = false;
    // Computes when it has its turn; null: always.
    std::shared_ptr<Turns> turns;
    // Those of InProcessEngineOptions.
    std::function<void(const Preemption&)> on_preemption;
    std::function<void(const SchedulerCore&)> on_planned;
  };

  // Starts and waits until it is ready; a failure to start fails the test and
  // leaves a runner whose answers are UNAVAILABLE.
  EngineRunner(std::shared_ptr<const GgufFile> file, Options options);
  ~EngineRunner();

  // Submits all requests at once, in this order, and waits for their ends.
  // Answers in the order of `requests`, whose ids must differ.
  std::vector<Answer> Run(const std::vector<TokenizedRequest>& requests);

  InProcessEngine& engine() { return *engine_; }

 private:
  SteadyClock clock_;
  ManualClock frozen_clock_;
  absl::Notification submitted_;  // the first Run
  std::unique_ptr<InProcessExecutor> executor_;
  std::shared_ptr<Turns> turns_;
  std::unique_ptr<StepExecutor> turn_;  // of turns_
  std::unique_ptr<InProcessEngine> engine_;
};

// The real model's file, mapped; a missing one fails the test by name.
std::shared_ptr<const GgufFile> OpenRealModel();

// Under a sanitizer the real model is 12 times slower: tests then run it on less
// data, through the same code.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// FLOTILLA_LONG=1: also what is too slow for every submission.
bool LongTests();

}  // namespace flotilla::testing
