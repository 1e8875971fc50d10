// OrderPolicy: which of two requests goes first, in the queue and when blocks
// are short. The last in this order is the first victim.
//
// A policy gives each request a key as it enters the queue; the key stays until
// it comes back (preempted), so orders never change under a queue. Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "scheduler/core/request.h"

namespace flotilla {

class OrderPolicy {
 public:
  virtual ~OrderPolicy() = default;
  virtual absl::string_view name() const = 0;
  // The key of a request that the group would need `predicted_ns` to finish.
  virtual OrderKey Key(const Request& request, std::int64_t predicted_ns) const = 0;
  // Whether a request that can hardly meet its deadline ends before it starts.
  virtual bool drops_late() const { return false; }
};

// First come, first served, whatever priorities say.
class FcfsPolicy final : public OrderPolicy {
 public:
  absl::string_view name() const override { return "fcfs"; }
  OrderKey Key(const Request&, std::int64_t) const override { return {}; }
};

// Higher priority first, then first come, first served. A preempted request
// keeps its arrival, so it is resumed before all that came later.
class PriorityPolicy final : public OrderPolicy {
 public:
  absl::string_view name() const override { return "priority"; }
  OrderKey Key(const Request& request, std::int64_t) const override {
    return {.group = -std::int64_t{request.priority}};
  }
};

// Among equal priorities the one that is predicted to be finished soonest: least
// mean latency, but long ones wait while short ones keep coming.
class SrptPolicy final : public OrderPolicy {
 public:
  absl::string_view name() const override { return "srpt"; }
  OrderKey Key(const Request& request, std::int64_t predicted_ns) const override {
    return {.group = -std::int64_t{request.priority}, .value = predicted_ns};
  }
};

// Among equal priorities the earliest deadline; those without one come last. A
// request that will hardly make it ends before its prefill, so that others do.
class DeadlinePolicy final : public OrderPolicy {
 public:
  absl::string_view name() const override { return "edf"; }
  OrderKey Key(const Request& request, std::int64_t) const override {
    return {.group = -std::int64_t{request.priority},
            .value = request.deadline_ns.value_or(std::numeric_limits<std::int64_t>::max())};
  }
  bool drops_late() const override { return true; }
};

// The policies by name, and one of them; null: no such name.
std::vector<absl::string_view> PolicyNames();
std::unique_ptr<OrderPolicy> MakePolicy(absl::string_view name);

// The order in queue and memory: those who may not be disturbed any more, then by
// policy, then first come, first served.
inline bool GoesBefore(const Request& a, const Request& b) {
  if (a.non_preemptible != b.non_preemptible) return a.non_preemptible;
  if (a.order.group != b.order.group) return a.order.group < b.order.group;
  if (a.order.value != b.order.value) return a.order.value < b.order.value;
  return a.arrival < b.arrival;
}

}  // namespace flotilla
