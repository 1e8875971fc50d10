// OrderPolicy: which of two branches goes first, in the queue and when blocks
// are short. The last in this order is the first victim.
#pragma once

#include "scheduler/core/branch.h"

namespace flotilla {

class OrderPolicy {
 public:
  virtual ~OrderPolicy() = default;
  // A strict total order that never changes while a branch lives.
  virtual bool Before(const Branch& a, const Branch& b) const = 0;
};

// Higher priority first, then first come, first served. A preempted branch
// keeps its arrival, so it is resumed before all that came later.
class FcfsPolicy final : public OrderPolicy {
 public:
  bool Before(const Branch& a, const Branch& b) const override {
    if (a.priority != b.priority) return a.priority > b.priority;
    return a.arrival < b.arrival;
  }
};

}  // namespace flotilla
