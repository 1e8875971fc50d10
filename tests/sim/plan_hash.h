// PlanHash: a hash of the values of plans. A change of names or of layout does not change it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/types/plan.h"
#include "tests/support/random.h"

namespace flotilla::testing {

class PlanHash {
 public:
  // Adds every field of the plan and of its operations, in their order.
  void Add(const StepPlan& plan);

  // The hash of all plans added so far, in their order.
  std::uint64_t value() const { return value_; }

 private:
  void Add(std::uint64_t word) { value_ = MixBits(value_ ^ word); }
  void Add(float number);
  void Add(const std::string& text);
  template <class Id>
  void AddIds(const std::vector<Id>& ids);

  void Add(const SamplingParams& sampling);
  void Add(const OpenSequence& op);
  void Add(const GrantBlocks& op);
  void Add(const ForkSequence& op);
  void Add(const DropSequence& op);
  void Add(const Run& op);
  void Add(const Defer& op);
  void Add(const BackgroundCopy& op);
  void Add(const LoadAdapter& op);
  void Add(const UnloadAdapter& op);
  void Add(const TrimBlocks& op);
  void Add(const ReleaseBlocks& op);
  void Add(const Speculate& op);

  std::uint64_t value_ = 0;
};

}  // namespace flotilla::testing
