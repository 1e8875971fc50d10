// OrderPolicy: which of two requests goes first, in the queue and when blocks
// are short. The last in this order is the first victim.
#pragma once

#include "scheduler/core/request.h"

namespace flotilla {

class OrderPolicy {
 public:
  virtual ~OrderPolicy() = default;
  // A strict total order that never changes while a request lives.
  virtual bool Before(const Request& a, const Request& b) const = 0;
};

// Higher priority first, then first come, first served. A preempted request
// keeps its arrival, so it is resumed before all that came later.
class FcfsPolicy final : public OrderPolicy {
 public:
  bool Before(const Request& a, const Request& b) const override {
    if (a.priority != b.priority) return a.priority > b.priority;
    return a.arrival < b.arrival;
  }
};

// The order in queue and memory: those who may not be disturbed any more, then by
// policy.
inline bool GoesBefore(const OrderPolicy& policy, const Request& a, const Request& b) {
  if (a.undisturbed != b.undisturbed) return a.undisturbed;
  return policy.Before(a, b);
}

}  // namespace flotilla
