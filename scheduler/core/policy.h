// OrderPolicy: decides which of two requests goes first, in the queue and when blocks
// are short. The last request in this order is the first victim.
//
// A policy gives each request a key when it enters the queue. The key stays until the
// request enters the queue again (after a preemption), so the order of waiting requests
// never changes. A policy is pure.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "scheduler/core/request.h"

namespace flotilla::scheduler {

class OrderPolicy {
 public:
  virtual ~OrderPolicy() = default;
  virtual absl::string_view name() const = 0;
  // The key of a request that the group is predicted to finish in `predicted_ns`.
  virtual OrderKey Key(const Request& request, std::int64_t predicted_ns) const = 0;
};

// First come, first served. Priorities are ignored.
class FcfsPolicy final : public OrderPolicy {
 public:
  absl::string_view name() const override { return "fcfs"; }
  OrderKey Key(const Request&, std::int64_t) const override { return {}; }
};

// Higher priority first, then first come, first served. A preempted request keeps its
// arrival number, so it is resumed before all requests that came later.
class PriorityPolicy final : public OrderPolicy {
 public:
  absl::string_view name() const override { return "priority"; }
  OrderKey Key(const Request& request, std::int64_t) const override {
    return {.group = -std::int64_t{request.priority}};
  }
};

// Among equal priorities, the request that is predicted to finish soonest goes first. This
// gives the least mean latency, but long requests wait while short ones keep coming.
class SrptPolicy final : public OrderPolicy {
 public:
  absl::string_view name() const override { return "srpt"; }
  OrderKey Key(const Request& request, std::int64_t predicted_ns) const override {
    return {.group = -std::int64_t{request.priority}, .value = predicted_ns};
  }
};

// Among equal priorities, the request with the earliest deadline goes first; requests
// without a deadline come last.
class DeadlinePolicy final : public OrderPolicy {
 public:
  absl::string_view name() const override { return "edf"; }
  OrderKey Key(const Request& request, std::int64_t) const override {
    return {.group = -std::int64_t{request.priority},
            .value = request.deadline_ns.value_or(std::numeric_limits<std::int64_t>::max())};
  }
};

// The names of the policies.
std::vector<absl::string_view> PolicyNames();
// Makes the policy of that name; null: there is none.
std::unique_ptr<OrderPolicy> MakePolicy(absl::string_view name);

// The order in the queue and in memory: by protection, then by policy, then first come, first
// served.
inline bool GoesBefore(const Request& a, const Request& b) {
  if (a.protection != b.protection) return a.protection > b.protection;
  if (a.order.group != b.order.group) return a.order.group < b.order.group;
  if (a.order.value != b.order.value) return a.order.value < b.order.value;
  return a.arrival < b.arrival;
}

}  // namespace flotilla::scheduler
