// DecodeLoad: a scheduler core at work with worker/core on many long sequences,
// until they all decode, and then in steps of nothing but decodes.
//
//   DecodeLoad load({.sequences = 256, .tokens = 8000, .steps = 100});
//   while (load.prefilling()) load.Step();
//   StepPlan plan = *load.core().Plan(0).plan;      // or step by step
//   if (auto result = load.Execute(plan)) load.Apply(*result);
//
// Blocks fill at every 16th step of a sequence; the sequences are staggered, so
// each step has some. Tokens come from FakeToken.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "scheduler/core/scheduler_core.h"
#include "worker/core/group_state.h"

namespace flotilla::testing {

struct DecodeLoadOptions {
  std::uint32_t sequences = 256;
  std::uint32_t tokens = 8000;  // of each prompt, or a few more
  std::uint32_t steps = 2000;   // that will be made after the prefill
  bool prefix_cache = true;
};

class DecodeLoad {
 public:
  explicit DecodeLoad(const DecodeLoadOptions& options);

  SchedulerCore& core() { return *core_; }
  // Some prompt is not complete yet.
  bool prefilling() const { return prefilling_; }
  // Takes the next plan; gives the result of the one before it, if there is one.
  // Two plans are under way, as in a server.
  std::optional<StepResult> Execute(StepPlan plan);
  void Apply(const StepResult& result);
  // A whole step.
  void Step();

 private:
  ExecutorDescription description_;
  std::optional<SchedulerCore> core_;
  std::optional<GroupState> worker_;
  std::deque<StepPlan> plans_;
  bool prefilling_ = true;
};

}  // namespace flotilla::testing
