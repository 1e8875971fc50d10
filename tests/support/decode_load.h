// DecodeLoad: a scheduler core and worker/core that run many long sequences. First
// the sequences prefill; when all of them decode, the steps contain decodes only.
//
//   DecodeLoad load({.sequences = 256, .tokens = 8000, .steps = 100});
//   while (load.prefilling()) load.Step();
//   StepPlan plan = *load.core().Plan(0).plan;      // or step by step
//   if (auto result = load.Execute(plan)) load.Apply(*result);
//
// A sequence fills a block at every 16th step. The sequences are staggered, so some
// blocks fill in each step. Tokens come from FakeToken.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "scheduler/core/scheduler_core.h"
#include "worker/core/group_state.h"

namespace flotilla::testing {

struct DecodeLoadOptions {
  std::uint32_t sequences = 256;
  std::uint32_t tokens = 8000;  // of each prompt; some have a few more
  std::uint32_t steps = 2000;   // steps after the prefill
  bool prefix_cache = true;
};

class DecodeLoad {
 public:
  explicit DecodeLoad(const DecodeLoadOptions& options);

  scheduler::SchedulerCore& core() { return *core_; }
  // Whether a prompt is not complete yet.
  bool prefilling() const { return prefilling_; }
  // Takes the next plan and returns the result of the previous plan, if there is one.
  // Two plans are in flight, as in a server.
  std::optional<StepResult> Execute(StepPlan plan);
  void Apply(const StepResult& result);
  // Runs a whole step.
  void Step();

 private:
  ExecutorDescription description_;
  std::optional<scheduler::SchedulerCore> core_;
  std::optional<worker::GroupState> worker_;
  std::deque<StepPlan> plans_;
  bool prefilling_ = true;
};

}  // namespace flotilla::testing
